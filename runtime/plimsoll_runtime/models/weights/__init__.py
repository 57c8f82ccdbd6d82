"""Checkpoints on disk: safetensors and GGUF, headers first, weights kept as stored."""
