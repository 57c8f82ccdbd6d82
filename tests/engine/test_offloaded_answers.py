"""A mixture whose experts go through a cache answers with the tokens of the resident one, whatever happens to requests.

Tiny random Qwen3 and Qwen3.5 mixtures in float32, greedy. With one running slot a step computes one sequence, and no
logprob may differ in any bit; with eight, batches differ in time, and ties are as in test_recurrent_answers.py.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from doubles.offloaded import load_offloaded
from engine.test_recurrent_answers import PROMPTS, SLICED, Answers, answer, check_same
from models.running import load
from models.tiny_models import build, save_folder
from plimsoll_runtime.models.decoder import Decoder
from plimsoll_runtime.models.experts.cache import ExpertCache

pytestmark = pytest.mark.usefixtures("one_thread")

SHARES = {"minimum": None, "quarter": 4, "half": 2, "whole": 1}
PREEMPTED: dict[str, Any] = {"running_slots": 4, "num_states": 10, "num_pages": 16, "step_tokens": 40}
MOVED: dict[str, Any] = {"running_slots": 2, "num_states": 2, "schedule": SLICED, "num_pages": 30, "host_pages": 200}


@pytest.fixture(scope="module", params=["qwen3_moe", "qwen3_5_moe"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = build(request.param)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    return save_folder(model, tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def resident(path: Path) -> Decoder:
    return load(path)


@pytest.fixture(scope="module")
def alone(resident: Decoder) -> Answers:
    found = answer(resident, PROMPTS, together=False)
    assert len({token.token_id for some in found.tokens for token in some}) > 20
    return found


@pytest.fixture(params=SHARES)
def offloaded(request: pytest.FixtureRequest, path: Path, resident: Decoder) -> tuple[Decoder, ExpertCache]:
    mixture = resident.architecture.mixture
    assert mixture is not None
    share = SHARES[request.param]
    all_experts = len(resident.layers) * mixture.num_experts
    num_slots = mixture.experts_per_token if share is None else all_experts // share
    return load_offloaded(path, path.parent / "pack", num_slots)


def check_bits(found: Answers, expected: Answers) -> None:
    for some, other in zip(found.tokens, expected.tokens, strict=True):
        assert [token.token_id for token in some] == [token.token_id for token in other]
        assert [token.logprobs for token in some] == [token.logprobs for token in other]


def test_one_sequence(offloaded: tuple[Decoder, ExpertCache], alone: Answers) -> None:
    check_bits(answer(offloaded[0], PROMPTS, together=False), alone)
    assert offloaded[1].counts.misses > 0


def test_eight_sequences_as_the_resident_model(offloaded: tuple[Decoder, ExpertCache], resident: Decoder) -> None:
    """The same batches, so the same bits."""
    sizes: dict[str, Any] = {"running_slots": 8, "num_states": 8, "step_tokens": 48}
    prompts = [*PROMPTS, PROMPTS[0][::-1]]
    check_bits(answer(offloaded[0], prompts, **sizes), answer(resident, prompts, **sizes))


def test_preempted_and_computed_again(
    offloaded: tuple[Decoder, ExpertCache], resident: Decoder, alone: Answers
) -> None:
    found = answer(offloaded[0], PROMPTS, **PREEMPTED)
    assert found.load.counts.recomputes > 0
    check_bits(found, answer(resident, PROMPTS, **PREEMPTED))
    check_same(found, alone.tokens)


def test_moved_to_host_memory_and_back(
    offloaded: tuple[Decoder, ExpertCache], resident: Decoder, alone: Answers
) -> None:
    found = answer(offloaded[0], PROMPTS, **MOVED)
    assert found.load.counts.swaps > 0
    check_bits(found, answer(resident, PROMPTS, **MOVED))
    check_same(found, alone.tokens)
