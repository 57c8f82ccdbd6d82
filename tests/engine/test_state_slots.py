"""State slots: live ones first, checkpoints as long as nobody else needs the room."""

from typing import Any

import pytest

from doubles.admitted_requests import admitted
from doubles.engine_runs import VOCAB_SIZE, EngineRun
from doubles.kv_caches import float_cache
from doubles.paged_memory import PagedMemory, continuation
from plimsoll_runtime.engine.host_kv import HostKV
from plimsoll_runtime.engine.runner import ModelRunner
from plimsoll_runtime.engine.settings import EngineSettings
from plimsoll_runtime.engine.state_slots import StateSlots
from plimsoll_runtime.events import PrefillDone

PROMPT = [1, 2, 3, 4, 5, 6, 7]


def make_run(num_states: int, **values: Any) -> EngineRun:
    """A decoder that fails where a state is not what its sequence left."""
    cache = float_cache(64, 2, num_states=num_states)
    runner = ModelRunner(PagedMemory(VOCAB_SIZE), cache, 2, "cpu")
    return EngineRun(runner=runner, host=HostKV(cache, 2), num_states=num_states, **values)


def cached_tokens(run: EngineRun, name: str, prompt: list[int], output_tokens: int = 2) -> int:
    run.engine.submit(admitted(name, prompt, max_output_tokens=output_tokens))
    run.finish()
    assert run.tokens(name) == continuation(prompt, output_tokens, VOCAB_SIZE)
    [found] = [e.cached_tokens for e in run.events if isinstance(e, PrefillDone) and e.request_id == name]
    return found


def test_who_needs_a_slot_takes_the_oldest_checkpoint() -> None:
    slots = StateSlots(3)
    first, second = slots.keep(10), slots.keep(11)
    slots.use(10)
    live = [slots.take(), slots.take()]
    assert (live[1], slots.has_checkpoint(10), slots.has_checkpoint(11)) == (second, True, False)
    assert slots.take() == first
    assert slots.num_available == 0
    assert slots.keep(12) is None
    slots.release(live[0])
    assert slots.keep(12) == live[0]
    assert slots.keep(12) is None, "it has one"
    slots.forget(12)
    slots.forget(12)
    assert (slots.num_live, slots.num_checkpoints, slots.num_available) == (2, 0, 1)
    slots.check_integrity()


CASES: list[tuple[str, list[int], int]] = [
    ("the same prompt", PROMPT, 6),
    ("a longer one", [*PROMPT, 9, 9, 9], 6),
    ("a shorter one has no checkpoint where it ends", PROMPT[:5], 0),
    ("another one", [9, *PROMPT], 0),
]


@pytest.mark.parametrize(("prompt", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_beginning_is_known_as_far_as_its_last_checkpoint(prompt: list[int], expected: int) -> None:
    """Keys and values of a shorter beginning are there too, and of no use without the state at its end."""
    run = make_run(num_states=8)
    assert cached_tokens(run, "first", PROMPT) == 0
    assert cached_tokens(run, "second", prompt) == expected


def test_a_long_prompt_has_a_checkpoint_at_the_end_of_every_chunk() -> None:
    run = make_run(num_states=20, step_tokens=9)
    long = [index % 30 for index in range(40)]
    assert cached_tokens(run, "first", long) == 0
    assert cached_tokens(run, "second", [*long[:17], 31]) == 16


def test_an_answer_keeps_its_newest_checkpoint() -> None:
    """Eight tokens are four pages: of an answer that passed 16 and 24, the state at 24 is kept."""
    run = make_run(num_states=20)
    assert cached_tokens(run, "first", PROMPT, output_tokens=20) == 0
    answer = run.tokens("first")
    assert run.engine.load().pages_used == 0
    assert cached_tokens(run, "second", [*PROMPT, *answer]) == 24
    assert cached_tokens(run, "third", [*PROMPT, *answer[:10]]) == 6


def test_without_spare_slots_nothing_is_kept_that_somebody_needs() -> None:
    run = make_run(num_states=1, running_slots=1)
    assert cached_tokens(run, "first", PROMPT) == 0
    assert cached_tokens(run, "second", PROMPT) == 0


def test_choices_start_from_the_state_of_the_one_that_computed_their_prompt() -> None:
    run = make_run(num_states=8, running_slots=3, prefix_caching=False)
    run.engine.submit(admitted("r", PROMPT, max_output_tokens=5, num_choices=3))
    run.finish()
    for choice in range(3):
        assert run.tokens("r", choice) == continuation(PROMPT, 5, VOCAB_SIZE)


def test_what_a_failed_request_computed_is_not_started_from() -> None:
    run = make_run(num_states=8, running_slots=1)
    run.engine.submit(admitted("first", PROMPT, max_output_tokens=50))
    run.step(3)
    run.engine._fail("first", "broken")
    run.step()
    assert cached_tokens(run, "second", PROMPT) == 0


def test_fewer_states_than_slots_are_refused() -> None:
    with pytest.raises(ValueError, match="1 states are too few for 2 running slots"):
        EngineSettings(
            running_slots=2, context_length=4, num_pages=4, num_tokens=8, detects_runaways=False, num_states=1
        )
