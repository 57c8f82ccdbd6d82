"""A step of a decoder on a CUDA device, by Triton's kernels: spans become page tables, and one call serves them all.

Owns the way from an `AttentionBatch` to kernels/triton_attention.py. Imported only where Triton computes.

Shapes: T tokens of the step, H query heads, K key/value heads, D head_dim.
"""

from dataclasses import dataclass

import torch

from plimsoll_runtime.kernels.triton_attention import (
    PageTables,
    attend_chunks,
    attend_tokens,
    make_tables,
    store_rows,
)
from plimsoll_runtime.models.attention import AttentionBatch, LayerCache
from plimsoll_runtime.models.step_kernels import StepKernels
from plimsoll_runtime.models.triton_experts import bank_experts


@dataclass(frozen=True, slots=True)
class PagePlan:
    """Sequences with one new token, and the others: each kind has a kernel of its own."""

    decoding: PageTables | None
    prefilling: PageTables | None
    window: int | None

    def attend(self, query_THD: torch.Tensor, cache: LayerCache, scale: float) -> torch.Tensor:
        output_THD = query_THD.new_zeros(query_THD.shape)
        if self.decoding is not None:
            attend_tokens(query_THD, cache.keys, cache.values, self.decoding, scale, self.window, output_THD)
        if self.prefilling is not None:
            attend_chunks(query_THD, cache.keys, cache.values, self.prefilling, scale, self.window, output_THD)
        return output_THD


def triton_kernels() -> StepKernels:
    return StepKernels(plan_attention=plan_pages, store=store_in_pages, triton=True, group_experts=bank_experts)


def plan_pages(batch: AttentionBatch, window: int | None, device: torch.device) -> PagePlan:
    decoding = [span for span in batch.spans if span.num_tokens == 1]
    prefilling = [span for span in batch.spans if span.num_tokens > 1]
    return PagePlan(
        decoding=make_tables(decoding, batch.page_size, device) if decoding else None,
        prefilling=make_tables(prefilling, batch.page_size, device) if prefilling else None,
        window=window,
    )


def store_in_pages(cache: LayerCache, rows_T: torch.Tensor, key_TKD: torch.Tensor, value_TKD: torch.Tensor) -> None:
    store_rows(key_TKD, value_TKD, cache.keys, cache.values, rows_T)
