"""Models that keep a state answer alike alone, among neighbours, in turns, moved, computed again and from checkpoints.

Tiny random Qwen3.5 models, dense and mixture, in float32, greedy. A first token that differs passes only where the two
tokens' logprobs lie closer than 1e-4 in the solo run (a tie), as in test_batch_independence.py.
"""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from doubles.admitted_requests import admitted
from doubles.engine_runs import Clock
from doubles.kv_caches import float_cache
from models.running import load
from models.tiny_models import DELTA_FAMILIES, build, save_folder
from plimsoll_runtime.engine.engine import Engine
from plimsoll_runtime.engine.host_kv import HostKV
from plimsoll_runtime.engine.load import EngineLoad
from plimsoll_runtime.engine.runner import ModelRunner
from plimsoll_runtime.engine.settings import EngineSettings, Schedule
from plimsoll_runtime.events import PrefillDone, Token
from plimsoll_runtime.models.decoder import Decoder

pytestmark = pytest.mark.usefixtures("one_thread")

CONTEXT = 96
PAGE_SIZE = 8
OUTPUT_TOKENS = 20
TIE = 1e-4
SLICED = Schedule(thresholds=(3,), weights=(2, 1), quantum_tokens=3, max_wait_seconds=1e9)
SHARED = [(7 * index * index + 3 * index) % 128 for index in range(70)]
PROMPTS = [[*SHARED[: 9 * index], *((5 * index + 11 * j) % 128 for j in range(3 + 2 * index))] for index in range(7)]


@dataclass(frozen=True, slots=True)
class Answers:
    """Tokens and likeliest logprobs of each prompt, how much was cached, and what happened."""

    tokens: list[list[Token]]
    cached_tokens: list[int]
    load: EngineLoad


@pytest.fixture(scope="module", params=DELTA_FAMILIES)
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    """Weights large enough that every token of the past counts; some states forget at once, some hardly."""
    model = build(request.param)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    return load(save_folder(model, tmp_path_factory.mktemp("model")))


def answer(decoder: Decoder, prompts: list[list[int]], together: bool = True, **values: Any) -> Answers:
    """All prompts at once, or one after the other on one engine."""
    shape = decoder.architecture
    made = {
        "running_slots": 1,
        "num_pages": 100,
        "num_states": 1,
        "step_tokens": 200,
        "prefix_caching": False,
        **values,
    }
    settings = EngineSettings(
        context_length=CONTEXT,
        num_tokens=shape.vocab_size,
        detects_runaways=False,
        page_size=PAGE_SIZE,
        headroom_tokens=1,
        state_pages=2,
        **made,
    )
    cache = float_cache(settings.num_pages, PAGE_SIZE, shape, settings.num_states)
    engine = Engine(ModelRunner(decoder, cache, PAGE_SIZE, "cpu"), settings, Clock(), HostKV(cache, PAGE_SIZE))
    tokens: list[list[Token]] = [[] for _ in prompts]
    cached = [0] * len(prompts)
    waiting = list(enumerate(prompts))
    while waiting or engine.has_work():
        while waiting and (together or not engine.has_work()):
            index, prompt = waiting.pop(0)
            requested = {"max_output_tokens": OUTPUT_TOKENS, "context_length": CONTEXT, "logprobs": 8}
            engine.submit(admitted(f"{index}", prompt, **requested))
        for event in engine.step():
            if isinstance(event, Token):
                tokens[int(event.request_id)].append(event)
            elif isinstance(event, PrefillDone):
                cached[int(event.request_id)] = event.cached_tokens
        engine.check_integrity()
    assert [len(some) for some in tokens] == [OUTPUT_TOKENS] * len(prompts)
    return Answers(tokens, cached, engine.load())


def check_same(found: Answers, alone: list[list[Token]]) -> None:
    for some, expected in zip(found.tokens, alone, strict=True):
        for one, other in zip(some, expected, strict=True):
            if one.token_id != other.token_id:
                assert other.logprobs is not None
                top = dict(other.logprobs.top)
                assert top[other.token_id] - top.get(one.token_id, float("-inf")) < TIE
                break


@pytest.fixture(scope="module")
def alone(decoder: Decoder) -> list[list[Token]]:
    found = [answer(decoder, [prompt]).tokens[0] for prompt in PROMPTS]
    assert len({token.token_id for some in found for token in some}) > 20, "answers that are all alike prove nothing"
    return found


def test_neighbours_and_chunks_change_no_token(decoder: Decoder, alone: list[list[Token]]) -> None:
    check_same(answer(decoder, PROMPTS, running_slots=4, num_states=4, step_tokens=21), alone)


def test_turns_with_a_state_for_everybody_change_no_token(decoder: Decoder, alone: list[list[Token]]) -> None:
    found = answer(decoder, PROMPTS, running_slots=2, num_states=9, schedule=SLICED)
    assert (found.load.counts.pauses > 5, found.load.counts.swaps) == (True, 0)
    check_same(found, alone)


def test_moves_to_host_memory_change_no_token(decoder: Decoder, alone: list[list[Token]]) -> None:
    """There are pages for all, and states for two: whoever pauses is moved, its state with it."""
    found = answer(decoder, PROMPTS, running_slots=2, num_states=2, schedule=SLICED, host_pages=200)
    assert (found.load.counts.swaps > 3, found.load.counts.recomputes) == (True, 0)
    check_same(found, alone)


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_computing_again_changes_no_token(decoder: Decoder, alone: list[list[Token]], prefix_caching: bool) -> None:
    sizes: dict[str, Any] = {"running_slots": 4, "num_states": 10, "num_pages": 16, "step_tokens": 40}
    found = answer(decoder, PROMPTS, prefix_caching=prefix_caching, **sizes)
    assert found.load.counts.recomputes > 0
    check_same(found, alone)


def test_known_beginnings_change_no_token(decoder: Decoder, alone: list[list[Token]]) -> None:
    sizes: dict[str, Any] = {"num_states": 20, "step_tokens": 32, "prefix_caching": True}
    again = answer(decoder, [*PROMPTS, *PROMPTS], together=False, **sizes)
    check_same(again, [*alone, *alone])
    borders = [(len(prompt) - 1) // PAGE_SIZE * PAGE_SIZE for prompt in PROMPTS]
    assert again.cached_tokens[len(PROMPTS) :] == borders
    assert sum(again.cached_tokens[: len(PROMPTS)]) > 0, "prompts that begin alike share a checkpoint"


def test_few_states_for_checkpoints_change_no_token(decoder: Decoder, alone: list[list[Token]]) -> None:
    sizes: dict[str, Any] = {"running_slots": 2, "num_states": 3, "step_tokens": 24, "num_pages": 30, "host_pages": 20}
    found = answer(decoder, [*PROMPTS, *PROMPTS], prefix_caching=True, schedule=SLICED, **sizes)
    check_same(found, [*alone, *alone])
