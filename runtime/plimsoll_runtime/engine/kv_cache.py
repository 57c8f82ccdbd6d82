"""The tensors that hold keys and values: one pair per layer, addressed by page.

In: the plan's pages and the model's shape. Out: `LayerCache` per layer, [pages * page_size, kv_heads, head_dim]. It
does not know which page belongs to whom. Row `page * page_size + i` is token i of the page.

Ownership: the runner holds the only references; pages are overwritten by their next owner and never cleared.
"""

import torch

from plimsoll_runtime.models.attention import LayerCache


def allocate_kv_cache(
    *,
    num_layers: int,
    num_kv_heads: int,
    head_dim: int,
    num_pages: int,
    page_size: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> list[LayerCache]:
    """Not filled: on a CPU the memory is taken page by page as it is written first. No row is read before that."""
    shape = (num_pages * page_size, num_kv_heads, head_dim)

    def rows() -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    return [LayerCache(keys=rows(), values=rows()) for _ in range(num_layers)]


def kv_bytes_per_token(*, num_layers: int, num_kv_heads: int, head_dim: int, element_bytes: int) -> int:
    """Bytes that one token's keys and values take in all layers."""
    return 2 * num_layers * num_kv_heads * head_dim * element_bytes
