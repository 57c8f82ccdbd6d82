"""Triton's attention over pages gives what the specification gives, whoever shares the step."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from kernels.triton_device import DEVICE
from plimsoll_runtime.kernels import reference, triton_attention
from plimsoll_runtime.kernels.triton_attention import PART_TOKENS, attend_chunks, attend_tokens, make_tables, store_rows

SCALE = 0.3
NUM_PAGES = 160
TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
MIXED = ((1, 0), (5, 0), (1, 17), (9, 13), (1, 3), (2, 4))
"""(new tokens, tokens before them): a first token, prompts, chunks with a context, decodes of different lengths."""


@dataclass(frozen=True, slots=True)
class Case:
    """Sizes of a layer, and the dtype of its cache."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int = 4
    window: int | None = None
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True, slots=True)
class Paged:
    """A sequence of the step."""

    start_row: int
    num_tokens: int
    context_tokens: int
    page_table: Sequence[int]

    @property
    def end_row(self) -> int:
        return self.start_row + self.num_tokens

    def rows(self, page_size: int) -> list[int]:
        """The cache rows of its tokens."""
        total = self.context_tokens + self.num_tokens
        return [self.page_table[at // page_size] * page_size + at % page_size for at in range(total)]


def lay_out(lengths: Sequence[tuple[int, int]], page_size: int) -> list[Paged]:
    """Scattered pages, none of them shared; row 0 of the step belongs to nobody."""
    pages = torch.randperm(NUM_PAGES, generator=torch.Generator().manual_seed(3)).tolist()
    sequences, row = [], 1
    for new, context in lengths:
        count = -(-(new + context) // page_size)
        sequences.append(Paged(row, new, context, pages[:count]))
        pages, row = pages[count:], row + new
    return sequences


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer's cache with what earlier tokens left in it, and the heads of a step, side by side in memory."""

    keys: torch.Tensor
    values: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


def draw(case: Case, sequences: Sequence[Paged]) -> Layer:
    """The same numbers on every call."""
    generator = torch.Generator().manual_seed(0)
    size = (NUM_PAGES * case.page_size, case.num_kv_heads, case.head_dim)
    keys, values = (torch.randn(size, generator=generator).to(DEVICE, case.dtype) for _ in range(2))
    num_rows = max(sequence.start_row + sequence.num_tokens for sequence in sequences)
    heads = torch.randn(num_rows, case.num_heads + 2 * case.num_kv_heads, case.head_dim, generator=generator)
    parts = torch.split(heads.to(DEVICE, case.dtype), [case.num_heads, case.num_kv_heads, case.num_kv_heads], 1)
    return Layer(keys, values, *parts)


def run(case: Case, layer: Layer, sequences: Sequence[Paged]) -> torch.Tensor:
    """One step of these sequences; `layer`'s cache is written."""
    new_rows = [row for sequence in sequences for row in sequence.rows(case.page_size)[sequence.context_tokens :]]
    step_rows = [row for sequence in sequences for row in range(sequence.start_row, sequence.end_row)]
    rows_T = torch.tensor(new_rows, device=DEVICE)
    store_rows(layer.key[step_rows], layer.value[step_rows], layer.keys, layer.values, rows_T)
    output = torch.zeros_like(layer.query)
    decoding = [sequence for sequence in sequences if sequence.num_tokens == 1]
    prefilling = [sequence for sequence in sequences if sequence.num_tokens > 1]
    for kind, attend in ((decoding, attend_tokens), (prefilling, attend_chunks)):
        if kind:
            tables = make_tables(kind, case.page_size, DEVICE)
            attend(layer.query, layer.keys, layer.values, tables, SCALE, case.window, output)
    return output


def expected_output(case: Case, layer: Layer, sequences: Sequence[Paged]) -> torch.Tensor:
    """By the specification, from a cache that is written already."""
    expected = torch.zeros_like(layer.query)
    for sequence in sequences:
        rows, seen = slice(sequence.start_row, sequence.end_row), sequence.rows(case.page_size)
        expected[rows] = reference.attend(layer.query[rows], layer.keys[seen], layer.values[seen], SCALE, case.window)
    return expected


def check(case: Case, lengths: Sequence[tuple[int, int]]) -> None:
    sequences = lay_out(lengths, case.page_size)
    layer = draw(case, sequences)
    output = run(case, layer, sequences)
    expected = expected_output(case, layer, sequences)
    torch.testing.assert_close(output, expected, rtol=0, atol=TOLERANCE[case.dtype])


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(2, 1, 64), id="64"),
        pytest.param(Case(3, 1, 96), id="96-odd-group"),
        pytest.param(Case(2, 2, 128), id="128-no-groups"),
        pytest.param(Case(2, 1, 256), id="256"),
        pytest.param(Case(4, 2, 80), id="80"),
        pytest.param(Case(2, 1, 8), id="8"),
        pytest.param(Case(6, 2, 64, page_size=16), id="page-16"),
        pytest.param(Case(2, 1, 64, window=6), id="window"),
        pytest.param(Case(2, 1, 64, window=1), id="window-1"),
        pytest.param(Case(4, 2, 64, dtype=torch.float16), id="float16"),
    ],
)
def test_mixed_steps_give_the_specification(case: Case) -> None:
    check(case, MIXED)


def test_tokens_are_stored_where_they_belong_and_nowhere_else() -> None:
    case = Case(2, 2, 80)
    sequences = lay_out(MIXED, case.page_size)
    layer, before = draw(case, sequences), draw(case, sequences)
    run(case, layer, sequences)
    for cached, old, new in ((layer.keys, before.keys, layer.key), (layer.values, before.values, layer.value)):
        for sequence in sequences:
            rows = sequence.rows(case.page_size)[sequence.context_tokens :]
            old[rows] = new[sequence.start_row : sequence.end_row]
        assert torch.equal(cached, old)


@pytest.mark.parametrize("window", [None, 40])
def test_a_long_context_is_read_in_parts(window: int | None) -> None:
    lengths = [(1, PART_TOKENS - 1), (1, PART_TOKENS), (1, 2 * PART_TOKENS + 7), (33, PART_TOKENS + 20)]
    check(Case(2, 1, 64, page_size=16, window=window), lengths)


def test_many_sequences_are_computed_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_attention, "WORKSPACE_BYTES", 4 * 2 * 66 * 2 // PART_TOKENS + 1)
    check(Case(2, 1, 64), [(1, length) for length in (3, 0, 9, 20, 1)])


def test_neighbours_do_not_change_a_bit() -> None:
    """A context that were cut by the longest of the step would be added up in another order beside a longer one."""
    case = Case(2, 1, 64, page_size=16)
    sequences = lay_out([(1, 300), (1, 700), (7, 20)], case.page_size)
    together = run(case, draw(case, sequences), sequences)
    for sequence in sequences:
        alone = run(case, draw(case, sequences), [sequence])
        assert torch.equal(
            alone[sequence.start_row : sequence.end_row], together[sequence.start_row : sequence.end_row]
        )


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_real_sizes_give_the_specification(head_dim: int, dtype: torch.dtype) -> None:
    if DEVICE.type != "cuda":
        pytest.skip("gpu: needs a CUDA device")
    case = Case(16, 4, head_dim, page_size=16, dtype=dtype)
    check(case, [(1, 900), (200, 300), (1, 40), (64, 0)])
