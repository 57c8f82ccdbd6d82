"""Whole models with Triton's kernels give the logits that torch gives them: the glue between step and kernels."""

from pathlib import Path

import pytest
import torch

from kernels.triton_device import DEVICE
from models.running import NUM_PAGES, run_chunks, run_neighbours
from models.tiny_models import build, save_gguf
from plimsoll_runtime.models.decoder import Decoder, load_decoder
from plimsoll_runtime.models.step_kernels import choose_step_kernels
from plimsoll_runtime.models.weights.checkpoint import open_checkpoint

TOKEN_IDS = [(11 * index * index + 5 * index) % 128 for index in range(60)]
SHUFFLED = torch.randperm(NUM_PAGES, generator=torch.Generator().manual_seed(3)).tolist()
TOLERANCE = 5e-5

Pair = tuple[Decoder, Decoder]


@pytest.fixture(scope="module", params=["llama_tied", "gemma3", "qwen3_5"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The same weights for Triton's kernels and for torch. Gemma has windows, Qwen3.5 a gate of attention, which makes
    values lie apart."""
    path: Path = tmp_path_factory.mktemp("model") / "model.gguf"
    save_gguf(build(request.param, num_hidden_layers=4), path, "Q8_0")
    return load(path, triton=True), load(path, triton=False)


def load(path: Path, triton: bool) -> Decoder:
    kernels = choose_step_kernels(triton)
    return load_decoder(open_checkpoint(path), DEVICE, torch.float32, lambda done, total: None, kernels=kernels)


def test_chunks_then_single_tokens(pair: Pair) -> None:
    by_triton, by_torch = (run_chunks(decoder, TOKEN_IDS[:28], [17, 2, 5, 1], SHUFFLED) for decoder in pair)
    torch.testing.assert_close(by_triton, by_torch, rtol=0, atol=TOLERANCE)


def test_neighbours(pair: Pair) -> None:
    found, expected = (run_neighbours(decoder, TOKEN_IDS, SHUFFLED) for decoder in pair)
    for (_, logits), (_, expected_logits) in zip(found, expected, strict=True):
        torch.testing.assert_close(logits, expected_logits, rtol=0, atol=TOLERANCE)
