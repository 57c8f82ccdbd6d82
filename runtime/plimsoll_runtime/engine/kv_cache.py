"""The tensors that hold keys, values and states: one pair per layer, addressed by page or by state slot.

In: the plan's pages and slots, and the model's shape. Out: for a layer with attention a `LayerCache`, [pages *
page_size, kv_heads, head_elements]; for one that keeps states a `StateCache` of so many slots. It does not know which
page or slot belongs to whom, nor how keys and values lie in a page: for torch, row `page * page_size + i` has token i
of the page, and the native library has its own layout.

Ownership: the runner and whoever moves what they hold have the only references; pages and slots are overwritten by
their next owner and never cleared.
"""

from math import prod

import torch

from plimsoll_runtime.models.architecture import Architecture, Attention, GatedDelta
from plimsoll_runtime.models.attention import LayerCache
from plimsoll_runtime.models.decoder import AnyCache
from plimsoll_runtime.models.gated_delta import StateCache


def allocate_kv_cache(
    *,
    num_layers: int,
    num_kv_heads: int,
    head_elements: int,
    num_pages: int,
    page_size: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> list[LayerCache]:
    """Not filled: on a CPU the memory is taken page by page as it is written first. No row is read before that."""
    shape = (num_pages * page_size, num_kv_heads, head_elements)

    def rows() -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    return [LayerCache(keys=rows(), values=rows()) for _ in range(num_layers)]


def allocate_cache(
    architecture: Architecture,
    *,
    head_elements: int,
    num_pages: int,
    page_size: int,
    num_states: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> list[AnyCache]:
    """What every layer keeps, in order of the layers. `num_states` is 0 where none keeps a state."""
    pages = iter(
        allocate_kv_cache(
            num_layers=len(architecture.attention_layers),
            num_kv_heads=architecture.num_kv_heads,
            head_elements=head_elements,
            num_pages=num_pages,
            page_size=page_size,
            dtype=dtype,
            device=device,
        )
    )
    return [
        next(pages) if isinstance(layer, Attention) else _allocate_states(layer, num_states, dtype, device)
        for layer in architecture.layers
    ]


def kv_bytes_per_token(*, num_layers: int, num_kv_heads: int, head_elements: int, element_bytes: int) -> int:
    """Bytes that one token's keys and values take in all layers."""
    return 2 * num_layers * num_kv_heads * head_elements * element_bytes


def state_bytes(architecture: Architecture, element_bytes: int) -> int:
    """Bytes that one sequence's state takes in all layers, however long the sequence is."""
    return sum(
        4 * prod(_recurrent_shape(layer)) + element_bytes * prod(_convolution_shape(layer))
        for layer in architecture.delta_layers
    )


def _allocate_states(layer: GatedDelta, num_states: int, dtype: torch.dtype, device: torch.device | str) -> StateCache:
    return StateCache(
        recurrent=torch.empty((num_states, *_recurrent_shape(layer)), dtype=torch.float32, device=device),
        convolution=torch.empty((num_states, *_convolution_shape(layer)), dtype=dtype, device=device),
    )


def _recurrent_shape(layer: GatedDelta) -> tuple[int, int, int]:
    return layer.num_value_heads, layer.key_dim, layer.value_dim


def _convolution_shape(layer: GatedDelta) -> tuple[int, int]:
    return layer.conv_tokens - 1, layer.conv_size
