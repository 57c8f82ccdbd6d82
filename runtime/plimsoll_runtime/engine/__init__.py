"""The engine: token ids in, events out, one thread. Knows no HTTP, no text, no Kubernetes."""
