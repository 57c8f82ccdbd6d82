"""Whole models with Triton's kernels give the logits that torch gives them: the glue between step and kernels."""

from pathlib import Path

import pytest
import torch

from kernels.random_weights import random_weights
from kernels.triton_device import DEVICE
from models.running import NUM_PAGES, Chunk, empty_cache, run_step
from models.tiny_models import build, save_gguf
from plimsoll_runtime.kernels import reference
from plimsoll_runtime.kernels.stored import StoredTensor
from plimsoll_runtime.models.decoder import Decoder, load_decoder
from plimsoll_runtime.models.feed_forward import GatedNetwork, GroupedMixture, MixtureNetwork, SharedMixture
from plimsoll_runtime.models.step_kernels import choose_step_kernels
from plimsoll_runtime.models.triton_experts import bank_experts
from plimsoll_runtime.models.weights.checkpoint import open_checkpoint

TOKEN_IDS = [(11 * index * index + 5 * index) % 128 for index in range(60)]
SHUFFLED = torch.randperm(NUM_PAGES, generator=torch.Generator().manual_seed(3)).tolist()
TOLERANCE = 5e-5
STEPS = (
    {"a": (0, 18), "b": (0, 1)},
    {"a": (18, 19), "b": (1, 7), "c": (0, 2)},
    {"b": (7, 8), "a": (19, 20), "c": (2, 9)},
)
"""Tokens of each sequence: chunks, single tokens, a sequence that comes later; the first outgrows Gemma's window."""

Pair = tuple[Decoder, Decoder]


@pytest.fixture(
    scope="module",
    params=[("llama_tied", 1, "Q4_1"), ("gemma3", 2, "Q8_0"), ("qwen3_moe", 1, "Q4_0"), ("qwen3_5_moe", 4, "F32")],
    ids=lambda parameters: parameters[0],
)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The same weights for Triton's kernels and for torch. Qwen3.5's gate of attention makes values lie apart."""
    family, num_layers, storage = request.param
    path: Path = tmp_path_factory.mktemp("model") / "model.gguf"
    save_gguf(build(family, num_hidden_layers=num_layers), path, storage)
    return load(path, triton=True), load(path, triton=False)


def load(path: Path, triton: bool) -> Decoder:
    kernels = choose_step_kernels(triton)
    return load_decoder(open_checkpoint(path), DEVICE, torch.float32, lambda done, total: None, kernels=kernels)


def run_steps(decoder: Decoder) -> list[torch.Tensor]:
    cache, logits = empty_cache(decoder), []
    for step in STEPS:
        chunks = []
        for name, (start, stop) in step.items():
            index = "abc".index(name)
            pages = SHUFFLED[8 * index : 8 * index + 8]
            chunks.append(Chunk(TOKEN_IDS[3 * index :][start:stop], start, pages, 2 - index))
        logits += run_step(decoder, cache, chunks)
    return logits


def test_steps_give_the_logits_of_torch(pair: Pair) -> None:
    by_triton, by_torch = map(run_steps, pair)
    for found, expected in zip(by_triton, by_torch, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


def test_experts_are_grouped(pair: Pair) -> None:
    """Else the test above would compare one expert after the other with itself."""
    for decoder, kind in zip(pair, (GroupedMixture, MixtureNetwork), strict=True):
        for layer in decoder.layers:
            network = layer.feed_forward
            mixture = network.chosen if isinstance(network, SharedMixture) else network
            assert isinstance(mixture, GatedNetwork | kind)


def stored(name: str) -> StoredTensor:
    return random_weights(name, 64, 64)


def test_gate_and_up_of_different_storage_have_a_bank_each() -> None:
    experts = [(stored("Q4_0"), stored("Q8_0"), stored("Q4_1"))] * 3
    banked = bank_experts(experts, "silu", DEVICE, torch.float32)
    assert banked is not None
    assert [bank.storage.name for bank in banked.gate_up] == ["Q4_0", "Q8_0"]
    shares, chosen = torch.tensor([[0.25, 0.5]]), torch.tensor([[2, 0]])
    values = torch.randn(1, 64, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    gate, up = (reference.linear(values, part.to(DEVICE)) for part in experts[0][:2])
    expected = 0.75 * reference.linear(torch.nn.functional.silu(gate) * up, experts[0][2].to(DEVICE))
    found = banked.compute(values, shares.to(DEVICE), chosen.to(DEVICE))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_experts_of_different_storage_are_not_grouped() -> None:
    same, other = (stored("Q4_0"),) * 3, (stored("Q4_0"), stored("Q4_0"), stored("Q8_0"))
    assert bank_experts([same, other], "silu", DEVICE, torch.float32) is None
