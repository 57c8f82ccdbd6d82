"""Attention of one step: the new tokens of many sequences against their pages of the cache.

Owns how a step's tokens find their keys and values. In: spans (which rows of the step belong to a sequence, and where
its context lies), queries, a layer's cache. Out: attended values. It does not know weights or scheduling.
Invariants: a sequence sees its own pages only; keys and values of the step's tokens are written before they are read;
a context that lies in consecutive pages is read in place, without a copy.

One sequence with context c and n new tokens owns rows start_row..start_row+n-1 of the step, and its token at position
p lives in cache row page_table[p // page_size] * page_size + p % page_size.

Shapes: T tokens of the step, H query heads, K key/value heads, D head_dim, P pages, N new tokens of one sequence,
S tokens it sees.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional

from plimsoll_runtime.kernels.reference import visible


@dataclass(frozen=True, slots=True)
class SequenceSpan:
    """`num_tokens` new tokens of one sequence, after `context_tokens` that are in the cache already. `state_slot`:
    where its state lies in layers that keep one; no other layer reads it."""

    start_row: int
    num_tokens: int
    context_tokens: int
    page_table: Sequence[int]
    state_slot: int = 0

    @property
    def rows(self) -> slice:
        """Its rows of the step."""
        return slice(self.start_row, self.start_row + self.num_tokens)


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """All sequences of a step. `cache_rows_T` (int64): the cache row where each new token's keys and values go."""

    spans: Sequence[SequenceSpan]
    page_size: int
    cache_rows_T: torch.Tensor


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's keys and values, `[P * page_size, K, D]` each."""

    keys: torch.Tensor
    values: torch.Tensor


class AttentionPlan(Protocol):
    """Where the sequences of one step find their keys and values, for all layers of one window."""

    def attend(self, query_THD: torch.Tensor, cache: LayerCache, scale: float) -> torch.Tensor:
        """`[T, H, D]` in and out; rows that belong to no span come out as zero."""
        ...


@dataclass(frozen=True, slots=True)
class SpanView:
    """Where one span's visible tokens lie: `rows` is a slice of the cache, or an index when its pages are scattered.

    `mask` (bool `[N, S]`, true where visible) is None when every query sees everything, or plain causality from the
    first token on is enough (`causal`).
    """

    queries: slice
    rows: slice | torch.Tensor
    mask: torch.Tensor | None
    causal: bool


def cache_rows(page_table: Sequence[int], page_size: int, start: int, stop: int) -> slice | torch.Tensor:
    """Cache rows of positions start..stop-1: a slice where the pages are consecutive, else an int64 index."""
    first, last = start // page_size, (stop - 1) // page_size
    pages = page_table[first : last + 1]
    if all(page == pages[0] + offset for offset, page in enumerate(pages)):
        base = (pages[0] - first) * page_size
        return slice(base + start, base + stop)
    positions = torch.arange(start, stop)
    return torch.tensor(pages)[positions // page_size - first] * page_size + positions % page_size


def plan_attention(batch: AttentionBatch, window: int | None, device: torch.device) -> list[SpanView]:
    """The views of every span for layers of one window, made once per step and shared by those layers."""
    return [_view(span, batch.page_size, window, device) for span in batch.spans]


@dataclass(frozen=True, slots=True)
class SpanPlan:
    """The plan for torch: span by span."""

    views: Sequence[SpanView]

    def attend(self, query_THD: torch.Tensor, cache: LayerCache, scale: float) -> torch.Tensor:
        return attend_paged(query_THD, cache, self.views, scale)


def store_tokens(cache: LayerCache, rows_T: torch.Tensor, key_TKD: torch.Tensor, value_TKD: torch.Tensor) -> None:
    """Keys and values of token t go to cache row `rows_T[t]`."""
    cache.keys.index_copy_(0, rows_T, key_TKD)
    cache.values.index_copy_(0, rows_T, value_TKD)


def attend_paged(query_THD: torch.Tensor, cache: LayerCache, views: Sequence[SpanView], scale: float) -> torch.Tensor:
    """`[T, H, D]` in and out; rows that belong to no span come out as zero."""
    output_THD = torch.zeros_like(query_THD)
    for view in views:
        output_THD[view.queries] = _attend_span(query_THD[view.queries], cache, view, scale)
    return output_THD


def _view(span: SequenceSpan, page_size: int, window: int | None, device: torch.device) -> SpanView:
    total = span.context_tokens + span.num_tokens
    start = 0 if window is None else max(0, span.context_tokens + 1 - window)
    rows = cache_rows(span.page_table, page_size, start, total)
    fits_window = window is None or total - start <= window
    causal = span.num_tokens > 1 and start == span.context_tokens and fits_window
    sees_all = span.num_tokens == 1 and fits_window
    return SpanView(
        queries=span.rows,
        rows=rows.to(device) if isinstance(rows, torch.Tensor) else rows,
        mask=None if causal or sees_all else visible(span.num_tokens, total - start, window, device),
        causal=causal,
    )


def _attend_span(query_NHD: torch.Tensor, cache: LayerCache, view: SpanView, scale: float) -> torch.Tensor:
    keys_KSD = cache.keys[view.rows].transpose(0, 1)
    values_KSD = cache.values[view.rows].transpose(0, 1)
    if view.mask is None and not view.causal:
        return _attend_one(query_NHD, keys_KSD, values_KSD, scale)
    output_HND = functional.scaled_dot_product_attention(
        query_NHD.transpose(0, 1)[None],
        keys_KSD[None],
        values_KSD[None],
        attn_mask=view.mask,
        is_causal=view.causal,
        scale=scale,
        enable_gqa=query_NHD.shape[1] != keys_KSD.shape[0],
    )[0]
    return output_HND.transpose(0, 1)


def _attend_one(
    query_1HD: torch.Tensor, keys_KSD: torch.Tensor, values_KSD: torch.Tensor, scale: float
) -> torch.Tensor:
    """One new token that sees everything: the query heads of a group become the rows of one attention, so that
    shared keys and values are read once and never repeated."""
    num_kv_heads, _, head_dim = keys_KSD.shape
    query_KGD = query_1HD.view(num_kv_heads, -1, head_dim)
    output_KGD = functional.scaled_dot_product_attention(query_KGD[None], keys_KSD[None], values_KSD[None], scale=scale)
    return output_KGD.reshape(1, -1, head_dim)
