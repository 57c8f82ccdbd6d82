"""Models: one config-driven decoder and the checkpoints it is loaded from."""
