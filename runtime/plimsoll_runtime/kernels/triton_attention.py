"""Keys and values into pages, and attention over them, for a CUDA device.

Owns three kernels: one stores the step's keys and values; one attends for sequences with one new token; one for chunks
of a prompt. `kernels/reference.py` (`attend`) is their specification. In: queries, one layer's cache, and the step's
`PageTables` on the device. It knows no model and no schedule. Invariants: a sequence reads along its own page table
only; its result does not depend on its neighbours: a context is cut at every PART_TOKENS-th token from its start,
whoever shares the batch, and parts are added in their order; a row of no sequence comes out as zero.

Shapes: T tokens of the step, B sequences, H query heads, K key/value heads, G query heads of one of them, D head_dim,
S cached tokens of one tile, M rows of one tile (a token and a head each), C parts of a context.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
import triton
import triton.language as tl

PART_TOKENS = 256
"""So many tokens of a context are read by one program of a decoding sequence."""

WORKSPACE_BYTES = 512 * 5
"""For each token of the longest context: what engine/capacity.py counts for a step of 512 tokens, where torch needs it
for masks and scores. Sequences that would need more for their parts are computed one group after the other."""

LEAST_SIZE = 16
"""What a side of a tile is filled up to, since the device's matrix units take no smaller one."""

NO_WINDOW = 1 << 30
HEADER = tl.constexpr(3)
"""Numbers before the pages in a row of `PageTables.rows`: first row, new tokens, tokens before them."""


class PagedSequence(Protocol):
    """`num_tokens` rows of the step from `start_row` on, after `context_tokens` that are in the cache already."""

    @property
    def start_row(self) -> int: ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def context_tokens(self) -> int: ...

    @property
    def page_table(self) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True)
class PageTables:
    """Some sequences of a step. `rows` (int32, on the device) has for each what HEADER counts, then its pages; what is
    longest is known to the host too."""

    rows: torch.Tensor
    most_new_tokens: int
    most_tokens: int
    page_size: int

    @property
    def num_sequences(self) -> int:
        return self.rows.shape[0]


def make_tables(sequences: Sequence[PagedSequence], page_size: int, device: torch.device) -> PageTables:
    """One copy to the device for all of them, of which there is at least one."""
    widest = max(len(sequence.page_table) for sequence in sequences)
    rows = np.zeros((len(sequences), HEADER.value + widest), dtype=np.int32)
    for row, sequence in zip(rows, sequences, strict=True):
        row[: HEADER.value] = sequence.start_row, sequence.num_tokens, sequence.context_tokens
        row[HEADER.value : HEADER.value + len(sequence.page_table)] = sequence.page_table
    return PageTables(
        rows=torch.from_numpy(rows).to(device),
        most_new_tokens=max(sequence.num_tokens for sequence in sequences),
        most_tokens=max(sequence.context_tokens + sequence.num_tokens for sequence in sequences),
        page_size=page_size,
    )


def store_rows(
    key_TKD: torch.Tensor, value_TKD: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rows_T: torch.Tensor
) -> None:
    """Row t of both goes to cache row `rows_T[t]` (int64); heads of one token lie side by side in all four."""
    num_tokens, num_elements = key_TKD.shape[0], keys[0].numel()
    block = min(triton.next_power_of_2(num_elements), 1024)
    grid = (num_tokens, triton.cdiv(num_elements, block))
    with torch.cuda.device_of(keys):
        _store_kernel[grid](
            key_TKD,
            value_TKD,
            keys,
            values,
            rows_T,
            _row_stride(key_TKD),
            _row_stride(value_TKD),
            num_elements,
            BLOCK=block,
        )


def attend_tokens(
    query_THD: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: PageTables,
    scale: float,
    window: int | None,
    output_THD: torch.Tensor,
) -> None:
    """One new token for each sequence: writes their rows of `output_THD`."""
    part_bytes = 4 * query_THD.shape[1] * (query_THD.shape[2] + 2)
    step = max(1, WORKSPACE_BYTES * PART_TOKENS // part_bytes)
    for first in range(0, tables.num_sequences, step):
        some = replace(tables, rows=tables.rows[first : first + step])
        _attend_tokens(query_THD, keys, values, some, scale, window, output_THD)


def _attend_tokens(
    query_THD: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: PageTables,
    scale: float,
    window: int | None,
    output_THD: torch.Tensor,
) -> None:
    num_heads, num_kv_heads, head_dim = query_THD.shape[1], keys.shape[1], keys.shape[2]
    group, num_parts = num_heads // num_kv_heads, triton.cdiv(tables.most_tokens, PART_TOKENS)
    shape = (tables.num_sequences, num_heads, num_parts)
    sum_BHCD = torch.empty((*shape, head_dim), dtype=torch.float32, device=keys.device)
    best_BHC, weight_BHC = torch.empty((2, *shape), dtype=torch.float32, device=keys.device)
    with torch.cuda.device_of(keys):
        _token_kernel[(tables.num_sequences, num_kv_heads, num_parts)](
            query_THD, keys, values, tables.rows, sum_BHCD, best_BHC, weight_BHC, scale, _width(window),
            _row_stride(query_THD), tables.rows.shape[1], num_parts, PART=PART_TOKENS,
            BLOCK_M=max(LEAST_SIZE, triton.next_power_of_2(group)), **_sizes(keys, group, tables.page_size),
        )  # fmt: skip
        _join_kernel[(tables.num_sequences, num_heads)](
            sum_BHCD, best_BHC, weight_BHC, output_THD, tables.rows, tables.rows.shape[1], num_parts,
            NUM_HEADS=num_heads, DIM=head_dim, BLOCK_D=triton.next_power_of_2(head_dim), PART=PART_TOKENS,
        )  # fmt: skip


def attend_chunks(
    query_THD: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: PageTables,
    scale: float,
    window: int | None,
    output_THD: torch.Tensor,
) -> None:
    """Any number of new tokens for each sequence, after their contexts: writes their rows of `output_THD`."""
    num_kv_heads, group = keys.shape[1], query_THD.shape[1] // keys.shape[1]
    sizes = _sizes(keys, group, tables.page_size)
    rows = max(triton.next_power_of_2(group), 2 * sizes["BLOCK_S"])
    with torch.cuda.device_of(keys):
        _chunk_kernel[(triton.cdiv(tables.most_new_tokens, rows // group), tables.num_sequences, num_kv_heads)](
            query_THD, keys, values, tables.rows, output_THD, scale, _width(window), _row_stride(query_THD),
            tables.rows.shape[1], BLOCK_M=rows, **sizes,
        )  # fmt: skip


def _sizes(keys: torch.Tensor, group: int, page_size: int) -> dict[str, int]:
    """Tiles of cached tokens are as large as a small device's fast memory (99 KiB) takes them, with float32 too."""
    num_kv_heads, head_dim = keys.shape[1:]
    block = max(LEAST_SIZE, triton.next_power_of_2(head_dim))
    tile_tokens = 32 if block * keys.element_size() <= 512 else 16
    return {
        "NUM_KV_HEADS": num_kv_heads,
        "GROUP": group,
        "PAGE": page_size,
        "DIM": head_dim,
        "BLOCK_S": tile_tokens,
        "BLOCK_D": block,
    }


def _width(window: int | None) -> int:
    return NO_WINDOW if window is None else window


def _row_stride(heads_THD: torch.Tensor) -> int:
    """A token's heads must lie side by side, the tokens may be any distance apart."""
    assert heads_THD.stride()[1:] == (heads_THD.shape[2], 1), f"heads with strides {heads_THD.stride()}"
    return heads_THD.stride(0)


@triton.jit
def _store_kernel(
    key_ptr, value_ptr, keys_ptr, values_ptr, rows_ptr, key_stride, value_stride, num_elements, BLOCK: tl.constexpr
):
    token = tl.program_id(0)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = element < num_elements
    target = tl.load(rows_ptr + token) * num_elements + element
    tl.store(keys_ptr + target, tl.load(key_ptr + token * key_stride + element, mask=inside), mask=inside)
    tl.store(values_ptr + target, tl.load(value_ptr + token * value_stride + element, mask=inside), mask=inside)


@triton.jit
def _attend_tile(
    query_MD, position_M, keys_ptr, values_ptr, pages_ptr, kv_head, start, stop, scale, window,
    NUM_KV_HEADS: tl.constexpr, PAGE: tl.constexpr, DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Rows of one sequence over its cached positions start..stop-1: the largest score of each row, the sum of its
    weights and of its weighted values, both relative to that score. A row that sees none of them has sums of zero."""
    dim_D = tl.arange(0, BLOCK_D)
    best_M = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    weight_M = tl.zeros((BLOCK_M,), tl.float32)
    sum_MD = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for first in range(start, stop, BLOCK_S):
        position_S = first + tl.arange(0, BLOCK_S)
        inside_S = position_S < stop
        page_S = tl.load(pages_ptr + position_S // PAGE, mask=inside_S, other=0).to(tl.int64)
        row_S = page_S * PAGE + position_S % PAGE
        address_SD = row_S[:, None] * (NUM_KV_HEADS * DIM) + kv_head * DIM + dim_D[None, :]
        inside_SD = inside_S[:, None] & (dim_D < DIM)[None, :]
        keys_SD = tl.load(keys_ptr + address_SD, mask=inside_SD, other=0.0)
        values_SD = tl.load(values_ptr + address_SD, mask=inside_SD, other=0.0)
        score_MS = tl.dot(query_MD, tl.trans(keys_SD), input_precision="ieee") * scale
        seen_MS = inside_S[None, :] & (position_S[None, :] <= position_M[:, None])
        seen_MS = seen_MS & (position_S[None, :] > position_M[:, None] - window)
        score_MS = tl.where(seen_MS, score_MS, float("-inf"))
        better_M = tl.maximum(best_M, tl.max(score_MS, 1))
        zero_M = tl.where(better_M == float("-inf"), 0.0, better_M)
        kept_M = tl.exp(best_M - zero_M)
        weight_MS = tl.exp(score_MS - zero_M[:, None])
        weight_M = weight_M * kept_M + tl.sum(weight_MS, 1)
        added_MD = tl.dot(weight_MS.to(values_SD.dtype), values_SD, input_precision="ieee")
        sum_MD = sum_MD * kept_M[:, None] + added_MD
        best_M = better_M
    return best_M, weight_M, sum_MD


@triton.jit
def _token_kernel(
    query_ptr, keys_ptr, values_ptr, tables_ptr, sum_ptr, best_ptr, weight_ptr, scale, window, query_stride,
    table_stride, num_parts, NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, PAGE: tl.constexpr, DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """One program for a sequence, a key/value head and a part of the context; leaves what `_join_kernel` adds up."""
    sequence, kv_head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    table_ptr = tables_ptr + sequence * table_stride
    position = tl.load(table_ptr + 2)
    if part * PART > position:
        return
    row = tl.load(table_ptr).to(tl.int64)
    head_M, dim_D = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    inside_MD = (head_M < GROUP)[:, None] & (dim_D < DIM)[None, :]
    address_MD = (kv_head * GROUP + head_M)[:, None] * DIM + dim_D[None, :]
    query_MD = tl.load(query_ptr + row * query_stride + address_MD, mask=inside_MD, other=0.0)
    start = tl.maximum(part * PART, position - window + 1)
    stop = tl.minimum(part * PART + PART, position + 1)
    position_M = tl.zeros((BLOCK_M,), tl.int32) + position
    best_M, weight_M, sum_MD = _attend_tile(
        query_MD, position_M, keys_ptr, values_ptr, table_ptr + HEADER, kv_head, start, stop, scale, window,
        NUM_KV_HEADS, PAGE, DIM, BLOCK_M, BLOCK_S, BLOCK_D,
    )  # fmt: skip
    place_M = (sequence * NUM_KV_HEADS * GROUP + kv_head * GROUP + head_M) * num_parts + part
    tl.store(best_ptr + place_M, best_M, mask=head_M < GROUP)
    tl.store(weight_ptr + place_M, weight_M, mask=head_M < GROUP)
    tl.store(sum_ptr + place_M.to(tl.int64)[:, None] * DIM + dim_D[None, :], sum_MD, mask=inside_MD)


@triton.jit
def _join_kernel(
    sum_ptr, best_ptr, weight_ptr, output_ptr, tables_ptr, table_stride, num_parts, NUM_HEADS: tl.constexpr,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """One program for a sequence and a head: its parts, in their order."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    table_ptr = tables_ptr + sequence * table_stride
    dim_D = tl.arange(0, BLOCK_D)
    first = (sequence * NUM_HEADS + head) * num_parts
    best = tl.full((), float("-inf"), tl.float32)
    weight = tl.zeros((), tl.float32)
    sum_D = tl.zeros((BLOCK_D,), tl.float32)
    for part in range(0, tl.load(table_ptr + 2) // PART + 1):
        place = first + part
        part_best = tl.load(best_ptr + place)
        part_D = tl.load(sum_ptr + place.to(tl.int64) * DIM + dim_D, mask=dim_D < DIM, other=0.0)
        better = tl.maximum(best, part_best)
        zero = tl.where(better == float("-inf"), 0.0, better)
        kept, added = tl.exp(best - zero), tl.exp(part_best - zero)
        weight = weight * kept + tl.load(weight_ptr + place) * added
        sum_D = sum_D * kept + part_D * added
        best = better
    row = tl.load(table_ptr).to(tl.int64)
    output_D = (sum_D / weight).to(output_ptr.dtype.element_ty)
    tl.store(output_ptr + (row * NUM_HEADS + head) * DIM + dim_D, output_D, mask=dim_D < DIM)


@triton.jit
def _chunk_kernel(
    query_ptr, keys_ptr, values_ptr, tables_ptr, output_ptr, scale, window, query_stride, table_stride,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, PAGE: tl.constexpr, DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program for some tokens of a sequence and a key/value head: row m is token m // GROUP, head m % GROUP."""
    tile, sequence, kv_head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    table_ptr = tables_ptr + sequence * table_stride
    num_tokens, context = tl.load(table_ptr + 1), tl.load(table_ptr + 2)
    first_token = tile * (BLOCK_M // GROUP)
    if first_token >= num_tokens:
        return
    row_M, dim_D = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    token_M, head_M = first_token + row_M // GROUP, kv_head * GROUP + row_M % GROUP
    inside_M = (row_M < BLOCK_M // GROUP * GROUP) & (token_M < num_tokens)
    inside_MD = inside_M[:, None] & (dim_D < DIM)[None, :]
    step_row_M = tl.load(table_ptr).to(tl.int64) + token_M
    address_MD = (step_row_M * query_stride + head_M * DIM)[:, None] + dim_D[None, :]
    query_MD = tl.load(query_ptr + address_MD, mask=inside_MD, other=0.0)
    start = tl.maximum(0, context + first_token - window + 1)
    stop = context + tl.minimum(first_token + BLOCK_M // GROUP, num_tokens)
    _, weight_M, sum_MD = _attend_tile(
        query_MD, context + token_M, keys_ptr, values_ptr, table_ptr + HEADER, kv_head, start, stop, scale, window,
        NUM_KV_HEADS, PAGE, DIM, BLOCK_M, BLOCK_S, BLOCK_D,
    )  # fmt: skip
    output_MD = sum_MD / tl.where(inside_M, weight_M, 1.0)[:, None]
    target_MD = ((step_row_M * NUM_KV_HEADS * GROUP + head_M) * DIM)[:, None] + dim_D[None, :]
    tl.store(output_ptr + target_MD, output_MD.to(output_ptr.dtype.element_ty), mask=inside_MD)
