"""The forward in one call: near the logits of transformers, and the same bits for all chunks, pages and neighbours."""

import ctypes
import dataclasses
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from models.running import NUM_PAGES, all_logits, load_native, run_chunks, run_neighbours
from models.tiny_models import FAMILIES, build, logits_of, save_gguf
from plimsoll_runtime.kernels import reference
from plimsoll_runtime.kernels.native_library import NativeKernels, open_native
from plimsoll_runtime.models.architecture import Mixture
from plimsoll_runtime.models.native_decoder import (
    CODE_GROUP,
    PAGE_TOKENS,
    DecoderStruct,
    LayerStruct,
    NativeDecoder,
    SpanStruct,
    StepStruct,
    fits_library,
)
from plimsoll_runtime.models.weights.checkpoint import open_checkpoint

TOKEN_IDS = [(11 * index * index + 5 * index) % 128 for index in range(100)]
SHUFFLED = torch.randperm(NUM_PAGES, generator=torch.Generator().manual_seed(3)).tolist()
PAGES = {"contiguous": list(range(40, 60)), "shuffled": SHUFFLED, "backwards": list(range(NUM_PAGES - 1, -1, -1))}
DENSE = [family for family in FAMILIES if "moe" not in family]

TOLERANCE = 0.06
"""Error of all logits relative to their size (root mean square). Rounding every product's inputs to 8 bits gives 0.02
to 0.04 in these models; a forgotten bias, norm, window or rotation gives 0.3 and more."""

POINTERS = ctypes.c_void_p * 1


@pytest.fixture
def native(instructions: str) -> NativeKernels:
    return open_native(3, instructions)


@pytest.mark.parametrize("family", DENSE)
def test_logits_are_near_those_of_transformers(family: str, native: NativeKernels, tmp_path: Path) -> None:
    model = build(family)
    path = save_gguf(model, tmp_path / "model.gguf", "Q8_0")
    ours, theirs = all_logits(load_native(path, native), TOKEN_IDS), logits_of(model, TOKEN_IDS)
    assert float((ours - theirs).norm() / theirs.norm()) < TOLERANCE


@pytest.fixture(params=["llama_tied", "gemma3"])
def decoder(request: pytest.FixtureRequest, native: NativeKernels, tmp_path: Path) -> NativeDecoder:
    """Gemma's window of 16 tokens is shorter than the sequences here."""
    return load_native(save_gguf(build(request.param), tmp_path / "model.gguf", "Q8_0"), native)


# B26: a sequence that was computed again, or in other chunks, went on with another token.
def test_chunks_and_pages_do_not_change_a_bit(decoder: NativeDecoder) -> None:
    expected = all_logits(decoder, TOKEN_IDS)
    for pages in PAGES.values():
        for sizes in ([17], [5, 1, 30, 7], [1], [99, 1]):
            assert torch.equal(run_chunks(decoder, TOKEN_IDS, sizes, pages), expected)


# B24: with neighbours, a request got another answer than alone.
def test_neighbours_do_not_change_a_bit(decoder: NativeDecoder) -> None:
    for computed, logits in run_neighbours(decoder, TOKEN_IDS, SHUFFLED):
        assert torch.equal(logits, all_logits(decoder, computed))


def encoded(numbers_SKD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes `[S, K, D]` of 8 bits and scales `[S, K, groups]` in float16, as layer_operations.h has them."""
    head_dim = numbers_SKD.shape[2]
    padded = functional.pad(numbers_SKD, (0, -head_dim % CODE_GROUP))
    groups = padded.view(*padded.shape[:2], -1, CODE_GROUP)
    scales = (groups.abs().amax(3) / 127).half()
    return (groups / scales.float()[..., None]).round().clamp(-127, 127).to(torch.int8).flatten(2)[
        ..., :head_dim
    ], scales


def decoded(codes_SKD: torch.Tensor, scales_SKG: torch.Tensor) -> torch.Tensor:
    head_dim = codes_SKD.shape[2]
    return codes_SKD * scales_SKG.float().repeat_interleave(CODE_GROUP, 2)[..., :head_dim]


def pair_dimensions(page_KTD: torch.Tensor) -> torch.Tensor:
    num_heads, num_tokens, head_dim = page_KTD.shape
    return page_KTD.reshape(num_heads, num_tokens, head_dim // 2, 2).transpose(1, 2)


def pair_tokens(page_KTD: torch.Tensor) -> torch.Tensor:
    num_heads, num_tokens, head_dim = page_KTD.shape
    return page_KTD.reshape(num_heads, num_tokens // 2, 2, head_dim).transpose(2, 3)


def lay_out(
    numbers_SKD: torch.Tensor, table: torch.Tensor, pair: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """The pages of a cache, `[pages, K, bytes]`, with the codes of a page as `pair` puts them. What no token wrote is
    127, and no number as a scale."""
    codes_SKD, scales_SKG = encoded(numbers_SKD)
    at, kv_heads = torch.arange(len(numbers_SKD)), numbers_SKD.shape[1]
    code_pages = torch.full((len(table), PAGE_TOKENS, kv_heads, codes_SKD.shape[2]), 127, dtype=torch.int8)
    scale_pages = torch.full((len(table), PAGE_TOKENS, kv_heads, scales_SKG.shape[2]), float("nan")).half()
    code_pages[table[at // PAGE_TOKENS], at % PAGE_TOKENS] = codes_SKD
    scale_pages[table[at // PAGE_TOKENS], at % PAGE_TOKENS] = scales_SKG
    codes = [pair(page.transpose(0, 1)).flatten(1) for page in code_pages]
    scales = scale_pages.permute(0, 2, 3, 1).flatten(2).contiguous().view(torch.int8)
    return torch.cat((torch.stack(codes), scales), 2).contiguous()


def attend(
    native: NativeKernels,
    query_THD: torch.Tensor,
    keys_SKD: torch.Tensor,
    values_SKD: torch.Tensor,
    window: int | None,
) -> torch.Tensor:
    """The library's attention of the last T of S tokens, on shuffled pages of the library's own layout."""
    num_tokens, num_heads, head_dim = query_THD.shape
    context, num_kv_heads, _ = keys_SKD.shape
    num_pages = -(-context // PAGE_TOKENS)
    table = torch.randperm(num_pages, generator=torch.Generator().manual_seed(1))
    keys, values = lay_out(keys_SKD, table, pair_dimensions), lay_out(values_SKD, table, pair_tokens)
    rest = torch.zeros(num_tokens, 2 * num_kv_heads, head_dim)
    queries, output = torch.cat((query_THD, rest), 1).contiguous(), torch.empty_like(query_THD)
    numbers = array("i", table.tolist())
    layer = LayerStruct(window=0 if window is None else window)
    decoder = DecoderStruct(
        layers=ctypes.pointer(layer),
        num_layers=1,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        attention_scale=0.3,
    )
    span = SpanStruct(0, num_tokens, context - num_tokens, numbers.buffer_info()[0])
    step = StepStruct(
        spans=ctypes.pointer(span),
        num_spans=1,
        num_rows=num_tokens,
        keys=POINTERS(keys.data_ptr()),
        values=POINTERS(values.data_ptr()),
    )
    structs = (ctypes.byref(decoder), ctypes.byref(step))
    assert not native.library.plimsoll_attend(native.handle, *structs, 0, queries.data_ptr(), output.data_ptr())
    return output


@pytest.mark.parametrize("window", [None, 1, 37, 300])
@pytest.mark.parametrize("heads", [(1, 1, 16), (9, 3, 64), (7, 1, 80), (8, 2, 48), (24, 1, 256)], ids=str)
def test_attention_equals_the_specification(heads: Sequence[int], window: int | None, native: NativeKernels) -> None:
    """Contexts of no, one and three chunks of 256 tokens; blocks that end within a tile of queries."""
    num_heads, num_kv_heads, head_dim = heads
    generator = torch.Generator().manual_seed(7)
    for num_tokens, context in ((1, 1), (1, 600), (5, 30), (31, 287), (70, 70)):
        query = torch.randn(num_tokens, num_heads, head_dim, generator=generator)
        keys, values = (
            decoded(*encoded(torch.randn(context, num_kv_heads, head_dim, generator=generator))) for _ in range(2)
        )
        found = attend(native, query, keys, values, window)
        torch.testing.assert_close(found, reference.attend(query, keys, values, 0.3, window), rtol=0, atol=5e-4)
        alone = attend(native, query[-1:], keys, values, window)
        assert torch.equal(alone, found[-1:])


def test_what_the_library_does_not_compute_is_left_to_torch(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(save_gguf(build("llama"), tmp_path / "model.gguf", "Q8_0"))
    shape, storages = checkpoint.architecture, checkpoint.weights.layer_storages
    assert storages == {"Q8_0"}
    assert fits_library(shape, storages, torch.float32, PAGE_TOKENS)
    assert not fits_library(shape, {"Q8_0", "F16"}, torch.float32, PAGE_TOKENS)
    assert not fits_library(shape, storages, torch.bfloat16, PAGE_TOKENS)
    assert not fits_library(shape, storages, torch.float32, 8)
    mixture = Mixture(num_experts=2, experts_per_token=1, expert_size=32, normalized=True)
    for changes in ({"head_dim": 24}, {"head_dim": 272}, {"num_heads": 50}, {"mixture": mixture}):
        assert not fits_library(dataclasses.replace(shape, **changes), storages, torch.float32, PAGE_TOKENS)
