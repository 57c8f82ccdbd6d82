"""Caches of keys and values on the processor, in float32, so that nothing is rounded that a test compares."""

import torch

from plimsoll_runtime.engine.kv_cache import allocate_kv_cache
from plimsoll_runtime.models.architecture import Architecture
from plimsoll_runtime.models.attention import LayerCache


def float_cache(num_pages: int, page_size: int, shape: Architecture | None = None) -> list[LayerCache]:
    """For the layers and heads of `shape`; without one a single number for each token, as PagedMemory keeps it."""
    return allocate_kv_cache(
        num_layers=1 if shape is None else shape.num_layers,
        num_kv_heads=1 if shape is None else shape.num_kv_heads,
        head_dim=1 if shape is None else shape.head_dim,
        num_pages=num_pages,
        page_size=page_size,
        dtype=torch.float32,
        device="cpu",
    )
