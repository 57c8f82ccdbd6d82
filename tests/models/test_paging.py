"""The same logits come out whatever the chunks, the pages and the neighbours of a sequence are."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from models.running import (
    NUM_PAGES,
    PAGE_SIZE,
    Chunk,
    all_logits,
    empty_cache,
    load,
    run_chunks,
    run_neighbours,
    run_step,
)  # fmt: skip
from models.tiny_models import build, save_gguf
from plimsoll_runtime.kernels import reference
from plimsoll_runtime.models.attention import (
    AttentionBatch,
    LayerCache,
    SequenceSpan,
    attend_paged,
    cache_rows,
    plan_attention,
)  # fmt: skip
from plimsoll_runtime.models.decoder import Decoder

TOKEN_IDS = [(11 * index * index + 5 * index) % 128 for index in range(60)]
TOLERANCE = 5e-5
SHUFFLED = torch.randperm(NUM_PAGES, generator=torch.Generator().manual_seed(3)).tolist()
PAGES = {"contiguous": list(range(40, 80)), "shuffled": SHUFFLED, "backwards": list(range(NUM_PAGES - 1, -1, -1))}


@pytest.fixture(scope="module", params=["llama_tied", "gemma3", "qwen3_moe", "qwen3_5", "qwen3_5_moe"])
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    """Gemma's window of 16 tokens is shorter than the sequences here; Qwen3.5 keeps states."""
    path: Path = tmp_path_factory.mktemp("model") / "model.gguf"
    return load(save_gguf(build(request.param), path, "Q8_0"))


@pytest.mark.parametrize("pages", PAGES)
@pytest.mark.parametrize("sizes", [[60], [17], [5, 1, 30, 7], [1], [59, 1]], ids=str)
def test_chunks_and_pages_do_not_change_the_logits(decoder: Decoder, sizes: list[int], pages: str) -> None:
    expected = all_logits(decoder, TOKEN_IDS)
    torch.testing.assert_close(run_chunks(decoder, TOKEN_IDS, sizes, PAGES[pages]), expected, rtol=0, atol=TOLERANCE)


def test_neighbours_do_not_change_the_logits(decoder: Decoder) -> None:
    for computed, logits in run_neighbours(decoder, TOKEN_IDS, SHUFFLED):
        torch.testing.assert_close(logits, all_logits(decoder, computed), rtol=0, atol=TOLERANCE)


def test_a_sequence_leaves_other_pages_alone(decoder: Decoder) -> None:
    cache = empty_cache(decoder)
    run_step(decoder, cache, [Chunk(TOKEN_IDS[:10], 0, [5, 9, 2])])
    written = {page * PAGE_SIZE + offset for page in (5, 9) for offset in range(4)} | {8, 9}
    for layer in (layer for layer in cache if isinstance(layer, LayerCache)):
        for stored in (layer.keys, layer.values):
            assert set((stored != 9.0).flatten(1).any(1).nonzero().flatten().tolist()) == written


@pytest.mark.parametrize(
    ("page_table", "start", "stop", "expected"),
    [
        ([3, 4, 5], 0, 12, slice(12, 24)),
        ([3, 4, 5], 5, 7, slice(17, 19)),
        ([3, 9, 5], 5, 7, slice(37, 39)),
        ([9, 3, 4], 4, 12, slice(12, 20)),
        ([3, 9], 2, 6, [14, 15, 36, 37]),
        ([3, 9, 5], 3, 9, [15, 36, 37, 38, 39, 20]),
        ([9, 8], 0, 8, [36, 37, 38, 39, 32, 33, 34, 35]),
    ],
)
def test_consecutive_pages_are_a_slice(
    page_table: list[int], start: int, stop: int, expected: slice | list[int]
) -> None:
    rows = cache_rows(page_table, PAGE_SIZE, start, stop)
    assert (rows if isinstance(rows, slice) else rows.tolist()) == expected


@pytest.mark.parametrize("window", [None, 1, 3, 8, 100])
@pytest.mark.parametrize("sizes", [[(1, 0)], [(6, 0)], [(1, 13)], [(5, 9)], [(1, 7), (4, 0), (3, 10), (1, 0)]], ids=str)
def test_paged_attention_equals_the_specification(sizes: Sequence[tuple[int, int]], window: int | None) -> None:
    """`sizes`: (new tokens, context tokens) of every sequence of the step."""
    cache = LayerCache(torch.randn(NUM_PAGES * PAGE_SIZE, 2, 8), torch.randn(NUM_PAGES * PAGE_SIZE, 2, 8))
    spans, start = [], 0
    for index, (num_tokens, context) in enumerate(sizes):
        spans.append(SequenceSpan(start, num_tokens, context, SHUFFLED[6 * index : 6 * index + 6]))
        start += num_tokens
    query = torch.randn(start, 6, 8)
    views = plan_attention(AttentionBatch(spans, PAGE_SIZE, torch.empty(0)), window, query.device)
    attended = attend_paged(query, cache, views, 0.3)
    for span in spans:
        positions = range(span.context_tokens + span.num_tokens)
        rows = [span.page_table[at // PAGE_SIZE] * PAGE_SIZE + at % PAGE_SIZE for at in positions]
        own = slice(span.start_row, span.start_row + span.num_tokens)
        expected = reference.attend(query[own], cache.keys[rows], cache.values[rows], 0.3, window)
        torch.testing.assert_close(attended[own], expected)
