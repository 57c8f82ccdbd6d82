"""The contract: configuration, command line, endpoints and metric names. Importable without torch."""
