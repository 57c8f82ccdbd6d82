"""A client that has left: its slot and pages are free at once, and nothing more is said of it."""

from collections.abc import Callable

import pytest

from doubles.admitted_requests import admitted
from doubles.engine_runs import EngineRun
from plimsoll_runtime.events import Failed, PrefillDone


def queued(run: EngineRun) -> None:
    run.engine.submit(admitted("other", [5] * 3, max_output_tokens=4))
    run.engine.submit(admitted("left", [1] * 9))
    run.step()


def prefilling(run: EngineRun) -> None:
    run.engine.submit(admitted("left", list(range(30))))
    run.step()
    assert run.steps[-1] == [("left", 0, 0, 16)]


def decoding(run: EngineRun) -> None:
    run.engine.submit(admitted("left", [1] * 3))
    run.step(4)
    assert len(run.tokens("left")) == 4


def many_choices(run: EngineRun) -> None:
    run.engine.submit(admitted("left", [1] * 3, [2], num_choices=4))
    run.step(2)


def not_stepped_yet(run: EngineRun) -> None:
    run.engine.submit(admitted("left", [1] * 3))


@pytest.mark.parametrize("prepare", [queued, prefilling, decoding, many_choices, not_stepped_yet])
def test_an_aborted_request_is_gone_at_once(prepare: Callable[[EngineRun], None]) -> None:
    """B36, B22: what nobody waited for any more was computed to its limit, and held the slot."""
    run = EngineRun(running_slots=1, prefix_caching=False)
    prepare(run)
    computed = sum(chunk[0] == "left" for step in run.steps for chunk in step)
    said = len(run.events)
    run.engine.abort("left")
    run.engine.check_integrity()
    run.engine.submit(admitted("next", [3], max_output_tokens=2))
    run.finish()
    assert sum(chunk[0] == "left" for step in run.steps for chunk in step) == computed
    assert not any(event.request_id == "left" for event in run.events[said:])
    assert run.ends("next") == [(0, "length", "request")]
    assert (run.engine.load().pages_used, run.engine.load().running, run.engine.load().waiting) == (0, 0, 0)


def test_a_preempted_request_can_be_aborted() -> None:
    run = EngineRun(context_length=8, num_pages=4, running_slots=2, headroom_tokens=1)
    for name in ("old", "young"):
        run.engine.submit(admitted(name, [1], max_output_tokens=7, context_length=8))
    while run.engine.load().counts.recomputes == 0:
        run.step()
    run.engine.abort("young")
    run.finish()
    assert (run.ends("old"), run.ends("young")) == ([(0, "length", "request")], [])


def test_one_choice_can_be_aborted_alone() -> None:
    """A stop string ends one choice in the text, while its siblings go on."""
    run = EngineRun(running_slots=3)
    run.engine.submit(admitted("r", [1], num_choices=3, max_output_tokens=4))
    run.step(2)
    run.engine.abort("r", 1)
    run.finish()
    assert run.ends("r") == [(0, "length", "request"), (2, "length", "request")]
    assert len(run.tokens("r", 1)) < 4


def test_the_siblings_of_an_aborted_first_choice_prefill_themselves() -> None:
    run = EngineRun(running_slots=1)
    run.engine.submit(admitted("r", list(range(30)), num_choices=2, max_output_tokens=2, prompt_logprobs=0))
    run.step()
    run.engine.abort("r", 0)
    run.finish()
    assert run.ends("r") == [(1, "length", "request")]
    assert [len(e.prompt_logprobs or ()) for e in run.events if isinstance(e, PrefillDone)] == [30]


@pytest.mark.parametrize("choice", [None, 0])
def test_unknown_ids_are_ignored(choice: int | None) -> None:
    run = EngineRun()
    run.engine.abort("nobody", choice)
    assert not run.engine.has_work()


def test_after_an_abort_not_even_a_failure_is_said() -> None:
    run = EngineRun()
    run.engine.submit(admitted("r", [999]))
    run.engine.abort("r")
    assert run.step() == []
    run.engine.submit(admitted("s", [999]))
    assert [type(event) for event in run.step()] == [Failed]
