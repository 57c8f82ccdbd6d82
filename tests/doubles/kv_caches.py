"""Caches on the processor, in float32, so that nothing is rounded that a test compares."""

import torch

from plimsoll_runtime.engine.kv_cache import allocate_cache, allocate_kv_cache
from plimsoll_runtime.models.architecture import Architecture
from plimsoll_runtime.models.decoder import AnyCache
from plimsoll_runtime.models.gated_delta import StateCache


def float_cache(
    num_pages: int, page_size: int, shape: Architecture | None = None, num_states: int = 0
) -> list[AnyCache]:
    """For the layers of `shape`; without one a single number for each token and state, as PagedMemory keeps them."""
    if shape is not None:
        return allocate_cache(
            shape,
            head_elements=shape.head_dim,
            num_pages=num_pages,
            page_size=page_size,
            num_states=num_states,
            dtype=torch.float32,
            device="cpu",
        )
    cache: list[AnyCache] = []
    cache += allocate_kv_cache(
        num_layers=1,
        num_kv_heads=1,
        head_elements=1,
        num_pages=num_pages,
        page_size=page_size,
        dtype=torch.float32,
        device="cpu",
    )
    if num_states:
        cache.append(StateCache(torch.full((num_states, 1, 1, 1), -1.0), torch.full((num_states, 1, 1), -1.0)))
    return cache
