"""A model whose experts go through a cache of any size computes what the resident one does, bit for bit."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf as gguf_library
import pytest
import torch
from safetensors.torch import load_file, save_file

from doubles.offloaded import load_offloaded
from kernels.native_fixtures import native_library
from models import tiny_models
from models.running import all_logits, load, run_chunks, run_neighbours
from models.tiny_models import build, save_as_seeing, save_folder, save_gguf
from plimsoll_runtime.kernels.native_library import open_native
from plimsoll_runtime.models.decoder import Decoder, load_decoder
from plimsoll_runtime.models.experts.cache import READERS
from plimsoll_runtime.models.experts.pack import PackError
from plimsoll_runtime.models.weights.checkpoint import CheckpointError, open_checkpoint

__all__ = ["native_library"]

TOKEN_IDS = [(7 * index * index + 3 * index) % 128 for index in range(100)]
CHUNKS = [40, 1, 1, 5, 20, 1, 1]
"""Long enough to stream, and single tokens between."""

NUM_EXPERTS = 3 * 8
SIZES = [3, 6, 12, 24]
"""Slots: those of one token's layer, a quarter, half, all."""

K_SIZES: dict[str, Any] = {"hidden_size": 256, "moe_intermediate_size": 256, "head_dim": 64, "num_hidden_layers": 2}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_gguf(build("qwen3_moe"), tmp_path_factory.mktemp("model") / "model.gguf", "Q4_0")


def check_same(found: Decoder, resident: Decoder) -> None:
    """In chunks, long and short, and among neighbours."""
    pages = range(len(TOKEN_IDS))
    assert torch.equal(run_chunks(found, TOKEN_IDS, CHUNKS, pages), run_chunks(resident, TOKEN_IDS, CHUNKS, pages))
    tables = list(range(60))
    for (_, some), (_, expected) in zip(
        run_neighbours(found, TOKEN_IDS, tables), run_neighbours(resident, TOKEN_IDS, tables), strict=True
    ):
        assert torch.equal(some, expected)


@pytest.mark.parametrize("num_slots", SIZES)
def test_any_size_gives_the_bits_of_the_resident_model(num_slots: int, gguf: Path, tmp_path: Path) -> None:
    decoder, cache = load_offloaded(gguf, tmp_path, num_slots)
    check_same(decoder, load(gguf))
    assert cache.num_resident == cache.num_slots == num_slots
    assert (cache.counts.hits > 0, cache.counts.misses > 0) == (num_slots > 6, True)


# B93: fused experts and the gate of the shared one, with and without offload; the resident ones are in test_logits.py.
@pytest.mark.parametrize(
    ("family", "storage"),
    [
        ("qwen3_moe", "F32"),
        ("qwen3_moe", "BF16"),
        ("qwen3_moe", "Q8_0"),
        ("qwen3_moe", "Q4_K"),
        ("qwen3_5_moe", "F32"),
        ("qwen3_5_moe", "Q8_0"),
    ],
)
def test_gguf_of_every_kind(family: str, storage: str, tmp_path: Path) -> None:
    sizes = K_SIZES if storage == "Q4_K" else {}
    path = save_gguf(build(family, **sizes), tmp_path / "model.gguf", storage)
    check_same(load_offloaded(path, tmp_path / "pack", 4)[0], load(path))


@pytest.mark.parametrize("save", [save_folder, save_as_seeing])
def test_safetensors_split_and_fused(save: Any, tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.mkdir()
    save(build("qwen3_5_moe"), path)
    check_same(load_offloaded(path, tmp_path / "pack", 4)[0], load(path))


@pytest.mark.parametrize("num_slots", SIZES)
def test_native_kernels_compute_out_of_slots(num_slots: int, native_library: Sequence[str], tmp_path: Path) -> None:
    kernels = open_native(1)
    path = save_gguf(build("qwen3_moe"), tmp_path / "model.gguf", "Q4_0")
    checkpoint = open_checkpoint(path)
    resident = load_decoder(checkpoint, torch.device("cpu"), torch.float32, lambda done, total: None, kernels)
    check_same(load_offloaded(path, tmp_path / "pack", num_slots, kernels)[0], resident)


def test_activations_of_16_bits(gguf: Path, tmp_path: Path) -> None:
    check_same(load_offloaded(gguf, tmp_path, 5, dtype=torch.bfloat16)[0], load(gguf, torch.bfloat16))


def test_experts_of_layers_stored_differently(tmp_path: Path) -> None:
    """As in files that mix 4 and 6 bits: slots take the largest, and a slot holds one form after the other."""
    model = build("qwen3_moe", **K_SIZES)
    mixed = _mixed(tmp_path, model)
    decoder, cache = load_offloaded(mixed, tmp_path / "pack", 5)
    check_same(decoder, load(mixed))
    assert cache.num_bytes > 5 * 3 * 256 * 256 * 34 // 32


def _mixed(folder: Path, model: Any) -> Path:
    """The file with the experts of the last layer in Q8_0."""
    stored = tiny_models._stored

    def by_layer(name: str, values: Any, storage: str) -> Any:
        return stored(name, values, "Q8_0" if name.startswith("blk.1.") and "exps" in name else storage)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_models, "_stored", by_layer)
        made = save_gguf(model, folder / "mixed.gguf", "Q4_0")
    kinds = {tensor.tensor_type.name for tensor in gguf_library.GGUFReader(made).tensors if "exps" in tensor.name}
    assert kinds == {"Q4_0", "Q8_0"}
    return made


def test_decoding_misses_less_in_a_larger_cache(gguf: Path, tmp_path: Path) -> None:
    misses = []
    for num_slots in SIZES:
        decoder, cache = load_offloaded(gguf, tmp_path, num_slots)
        run_chunks(decoder, TOKEN_IDS, [1], range(100))
        misses.append(cache.counts.misses)
        assert cache.counts.hits + cache.counts.misses == 3 * 3 * len(TOKEN_IDS)
        assert cache.counts.brought_bytes > 0
    assert misses == sorted(misses, reverse=True)
    assert misses[-1] == cache.num_resident, "all fit: each is brought once"


# FreeToken evicts the first slots at every prefill, and stopped learning where few misses were left.
def test_a_long_prompt_leaves_the_decoded_experts_there(gguf: Path, tmp_path: Path) -> None:
    decoder, cache = load_offloaded(gguf, tmp_path, 20)
    run_chunks(decoder, TOKEN_IDS[:30], [1], range(100))
    before = set(cache._residency._slot_of)
    all_logits(decoder, TOKEN_IDS)
    stayed = before & set(cache._residency._slot_of)
    assert len(before) == 20
    assert len(stayed) >= 20 - READERS - 1


def test_a_long_prompt_fills_a_cache_that_is_not_full(gguf: Path, tmp_path: Path) -> None:
    decoder, cache = load_offloaded(gguf, tmp_path, NUM_EXPERTS)
    all_logits(decoder, TOKEN_IDS)
    assert cache.num_resident == NUM_EXPERTS
    brought = cache.counts.brought_bytes
    all_logits(decoder, TOKEN_IDS)
    assert cache.counts.brought_bytes == brought


def test_memory_is_that_of_the_slots(gguf: Path, tmp_path: Path) -> None:
    cache = load_offloaded(gguf, tmp_path, 5)[1]
    assert cache.num_bytes == 5 * cache._layout.slot_bytes


def test_a_damaged_expert_ends_the_step_and_the_cache_stays_whole(gguf: Path, tmp_path: Path) -> None:
    decoder, cache = load_offloaded(gguf, tmp_path, 6)
    checksums = cache._pack._checksums
    cache._pack._checksums = tuple(0 for _ in checksums)
    with pytest.raises(PackError, match="damaged"):
        run_chunks(decoder, TOKEN_IDS, CHUNKS, range(100))
    cache._pack._checksums = checksums
    check_same(decoder, load(gguf))


def test_experts_of_one_layer_stored_in_different_ways_are_refused(tmp_path: Path) -> None:
    folder = save_folder(build("qwen3_moe"), tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.experts.2.down_proj.weight"
    tensors[name] = tensors[name].to(torch.bfloat16)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="the experts of layer 1 are stored in different ways"):
        load_offloaded(folder, tmp_path / "pack", 4)
