"""Runs a decoder over token ids in chosen chunks and pages, as the engine would."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from plimsoll_runtime.kernels.native_library import NativeKernels
from plimsoll_runtime.models.architecture import Attention, GatedDelta
from plimsoll_runtime.models.attention import AttentionBatch, LayerCache, SequenceSpan
from plimsoll_runtime.models.decoder import AnyCache, Decoder, load_decoder
from plimsoll_runtime.models.gated_delta import StateCache
from plimsoll_runtime.models.native_decoder import (
    NATIVE_CACHE_DTYPE,
    PAGE_TOKENS,
    NativeDecoder,
    fits_library,
    native_head_elements,
)
from plimsoll_runtime.models.weights.checkpoint import open_checkpoint

AnyDecoder = Decoder | NativeDecoder

CPU = torch.device("cpu")
PAGE_SIZE = 4
NUM_PAGES = 128
NUM_STATES = 3


@dataclass(frozen=True, slots=True)
class Chunk:
    """New tokens of one sequence after `context_tokens`, with its pages, and where its state lies."""

    token_ids: Sequence[int]
    context_tokens: int
    page_table: Sequence[int]
    state_slot: int = 0


def load(path: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    return load_decoder(open_checkpoint(path), CPU, dtype, lambda done_bytes, all_bytes: None)


def load_native(path: Path, kernels: NativeKernels) -> NativeDecoder:
    checkpoint = open_checkpoint(path)
    assert fits_library(checkpoint.architecture, checkpoint.weights.layer_storages, torch.float32, PAGE_TOKENS)
    decoder = load_decoder(checkpoint, CPU, torch.float32, lambda done_bytes, all_bytes: None, kernels)
    return NativeDecoder(decoder, kernels)


def empty_cache(decoder: AnyDecoder) -> list[AnyCache]:
    """Filled with numbers that would show: a page or state that is read before it is written is never silently zero."""
    shape = decoder.architecture
    is_native = isinstance(decoder, NativeDecoder)
    head_elements = native_head_elements(shape.head_dim) if is_native else shape.head_dim
    size = (NUM_PAGES * page_size_of(decoder), shape.num_kv_heads, head_elements)
    dtype = NATIVE_CACHE_DTYPE if is_native else decoder.dtype
    unwritten = 127 if is_native else 9.0  # two such bytes are no number, as a scale
    device = decoder.device

    def of_kind(layer: Attention | GatedDelta) -> AnyCache:
        if isinstance(layer, Attention):
            keys, values = (torch.full(size, unwritten, dtype=dtype, device=device) for _ in range(2))
            return LayerCache(keys, values)
        states = (NUM_STATES, layer.num_value_heads, layer.key_dim, layer.value_dim)
        convolution = (NUM_STATES, layer.conv_tokens - 1, layer.conv_size)
        return StateCache(
            torch.full(states, 9.0, device=device), torch.full(convolution, 9.0, dtype=dtype, device=device)
        )

    return [of_kind(layer) for layer in shape.layers]


def page_size_of(decoder: AnyDecoder) -> int:
    return PAGE_TOKENS if isinstance(decoder, NativeDecoder) else PAGE_SIZE


def run_step(decoder: AnyDecoder, cache: Sequence[AnyCache], chunks: Sequence[Chunk]) -> list[torch.Tensor]:
    """One forward; logits `[n, V]` of every chunk's tokens."""
    spans: list[SequenceSpan] = []
    rows: list[int] = []
    positions: list[int] = []
    page_size = page_size_of(decoder)
    for chunk in chunks:
        num_tokens = len(chunk.token_ids)
        spans.append(SequenceSpan(len(rows), num_tokens, chunk.context_tokens, chunk.page_table, chunk.state_slot))
        for position in range(chunk.context_tokens, chunk.context_tokens + len(chunk.token_ids)):
            rows.append(chunk.page_table[position // page_size] * page_size + position % page_size)
            positions.append(position)
    token_ids = torch.tensor([token_id for chunk in chunks for token_id in chunk.token_ids])
    batch = AttentionBatch(spans, page_size, torch.tensor(rows, device=decoder.device))
    hidden = decoder.forward(token_ids.to(decoder.device), torch.tensor(positions, device=decoder.device), batch, cache)
    return list(torch.split(decoder.logits(hidden), [len(chunk.token_ids) for chunk in chunks]))


def run_chunks(
    decoder: AnyDecoder, token_ids: Sequence[int], sizes: Sequence[int], page_table: Sequence[int]
) -> torch.Tensor:
    """A whole sequence in chunks of the given sizes (the last one repeats); logits `[T, V]`."""
    cache, logits, at = empty_cache(decoder), [], 0
    for index in range(len(token_ids)):
        size = sizes[min(index, len(sizes) - 1)]
        if at < len(token_ids):
            logits += run_step(decoder, cache, [Chunk(token_ids[at : at + size], at, page_table)])
        at += size
    return torch.cat(logits)


def all_logits(decoder: AnyDecoder, token_ids: Sequence[int]) -> torch.Tensor:
    return run_chunks(decoder, token_ids, [len(token_ids)], range(NUM_PAGES))


def run_neighbours(
    decoder: AnyDecoder, token_ids: Sequence[int], pages: Sequence[int]
) -> list[tuple[Sequence[int], torch.Tensor]]:
    """Step after step of three sequences in one forward each: prompts in chunks, decodes, and one that comes later.

    What each of them computed, and its logits `[T, V]`.
    """
    prompts = [token_ids, token_ids[20:60], token_ids[7:40]]
    tables = [pages[20 * index : 20 * index + 20] for index in range(3)]
    takes = [[9, 0, 30], [1, 11, 1], [1, 1, 1], [20, 28, 1], [29, 0, 0]]
    cache, done = empty_cache(decoder), [0, 0, 0]
    found: list[list[torch.Tensor]] = [[], [], []]
    for take in takes:
        busy = [index for index in range(3) if take[index]]
        chunks = [Chunk(prompts[i][done[i] : done[i] + take[i]], done[i], tables[i], 2 - i) for i in busy]
        for index, logits in zip(busy, run_step(decoder, cache, chunks), strict=True):
            found[index].append(logits)
            done[index] += take[index]
    return [(prompt[:count], torch.cat(parts)) for prompt, count, parts in zip(prompts, done, found, strict=True)]
