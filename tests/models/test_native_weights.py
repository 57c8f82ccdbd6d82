"""SmolLM2 with the native kernels: how far 8-bit activations move the logits, and that they move them for all alike."""

import pytest
import torch

from kernels.conftest import native_library
from models.running import CPU, all_logits, load
from models.test_smollm2 import RECORDED, smollm2_path
from plimsoll_runtime.kernels.native_library import open_native
from plimsoll_runtime.models.decoder import Decoder, load_decoder
from plimsoll_runtime.models.weights.checkpoint import open_checkpoint

__all__ = ["native_library"]

MAX_MEAN_DIVERGENCE = 0.01
"""Nats per token between float32 and 8-bit activations; 0.003 and 0.006 were measured, a wrong weight gives 1."""

MAX_ERROR = 0.1
"""Root mean square of the logits' error, by that of the logits; 0.04 to 0.06 were measured."""

NEAR_TIE = 0.5
"""The likeliest token may be another one only where the two differ by less (logits of this model span 30)."""


@pytest.fixture(scope="module")
def native_decoder(native_library: tuple[str, ...]) -> Decoder:
    checkpoint = open_checkpoint(smollm2_path())
    return load_decoder(checkpoint, CPU, torch.float32, lambda done, total: None, open_native(2))


@pytest.fixture(scope="module")
def exact_decoder() -> Decoder:
    return load(smollm2_path())


@pytest.mark.parametrize("case", RECORDED["cases"], ids=["sentence", "300 tokens"])
def test_logits_are_near_those_of_float32_activations(
    case: dict[str, list[int]], native_decoder: Decoder, exact_decoder: Decoder
) -> None:
    found, exact = (all_logits(decoder, case["token_ids"]) for decoder in (native_decoder, exact_decoder))
    likelihoods = exact.log_softmax(-1)
    divergence = (likelihoods.exp() * (likelihoods - found.log_softmax(-1))).sum(-1)
    assert divergence.mean() < MAX_MEAN_DIVERGENCE
    assert (found - exact).norm() < MAX_ERROR * exact.norm()
    two_likeliest = exact.topk(2).values
    lead = two_likeliest[:, 0] - two_likeliest[:, 1]
    assert lead[found.argmax(-1) != exact.argmax(-1)].le(NEAR_TIE).all()


def test_paris_follows_the_capital_of_france(native_decoder: Decoder) -> None:
    assert all_logits(native_decoder, [504, 3575, 282, 4649, 314])[-1].argmax() == 7042
