"""Who computes what, in which order, and who gives way when pages are short. Speed is asserted in steps and order."""

from typing import Any

import pytest

from doubles.admitted_requests import admitted
from doubles.engine_runs import EngineRun
from plimsoll_runtime.events import Finished, PrefillDone, Started, Token


def counting(prompt: tuple[int, ...], position: int) -> int:
    """Writes ids that depend on the prompt and the position, so that a mix-up shows."""
    return (sum(prompt) * 5 + position * 3) % 32


def test_a_long_prompt_never_freezes_a_running_stream() -> None:
    """B20: while a long prompt was prefilled, running streams stood still until it was done."""
    run = EngineRun(step_tokens=8, running_slots=2)
    run.engine.submit(admitted("stream", [1], max_output_tokens=40))
    run.step()
    run.engine.submit(admitted("long", list(range(2, 32)), max_output_tokens=1))
    while not run.ends("long"):
        said = run.step()
        assert next(event.request_id for event in said if isinstance(event, Token)) == "stream"
    # 30 prompt tokens at 8 - 1 in each step.
    assert [step for step in run.steps if len(step) == 2] == [
        [("stream", 0, 1 + i, 1), ("long", 0, 7 * i, min(7, 30 - 7 * i))] for i in range(5)
    ]


def test_chunks_go_on_in_order_of_arrival_and_fill_the_step() -> None:
    run = EngineRun(step_tokens=8, running_slots=3)
    for name, length in (("a", 10), ("b", 4), ("c", 9)):
        run.engine.submit(admitted(name, [ord(name) % 32] * length, max_output_tokens=1))
    run.finish()
    assert [[(name, tokens) for name, _, _, tokens in step] for step in run.steps] == [
        [("a", 8)],
        [("a", 2), ("b", 4), ("c", 2)],
        [("c", 7)],
    ]


def test_first_come_first_served() -> None:
    """B20: among equals the order is that of arrival, and a waiting request goes ahead as soon as a slot is free."""
    run = EngineRun(running_slots=2)
    for index, limit in enumerate([5, 2, 2, 2, 2]):
        run.engine.submit(admitted(f"r{index}", [index], max_output_tokens=limit))
    run.finish()
    assert [e.request_id for e in run.events if isinstance(e, Started)] == ["r0", "r1", "r2", "r3", "r4"]
    assert [e.request_id for e in run.events if isinstance(e, Finished)] == ["r1", "r2", "r0", "r3", "r4"]


def test_no_more_than_the_slots_run() -> None:
    run = EngineRun(running_slots=3)
    for index in range(8):
        run.engine.submit(admitted(f"r{index}", [index], max_output_tokens=4))
    run.finish()
    assert max(len(step) for step in run.steps) == 3


@pytest.mark.parametrize("num_pages", [4, 5, 8, 15, 16])
def test_requests_as_long_as_the_context_all_complete(num_pages: int) -> None:
    """B10: the context was divided by the slots, or one long request ended all the others.

    Four at once, each as long as the context, in a pool that holds one to four of them.
    """
    run = EngineRun(counting, context_length=8, num_pages=num_pages, running_slots=4, headroom_tokens=1)
    for index in range(4):
        run.engine.submit(admitted(f"r{index}", [index, 1], max_output_tokens=6, context_length=8))
    run.finish()
    for index in range(4):
        assert run.tokens(f"r{index}") == [counting((index, 1), position) for position in range(6)]
        assert run.ends(f"r{index}") == [(0, "length", "request")]
    assert (run.engine.load().counts.recomputes > 0) == (num_pages < 16)


def test_the_youngest_gives_way_and_comes_back_first() -> None:
    run = EngineRun(counting, context_length=8, num_pages=5, running_slots=3, headroom_tokens=1, prefix_caching=False)
    for name in ("old", "young", "next"):
        run.engine.submit(admitted(name, [1, 2], max_output_tokens=6, context_length=8))
    run.finish()
    assert run.engine.load().counts.recomputes > 0
    # What was preempted is computed again from its first token: only the youngest ever was.
    assert [first for step in run.steps for name, _, first, _ in step if name == "old"] == [0, *range(2, 7)]
    assert [e.request_id for e in run.events if isinstance(e, Finished)] == ["old", "young", "next"]


def test_a_preempted_sequence_says_nothing_twice() -> None:
    run = EngineRun(counting, context_length=8, num_pages=4, running_slots=2, headroom_tokens=1)
    for index in range(2):
        run.engine.submit(admitted(f"r{index}", [index], max_output_tokens=7, context_length=8))
    run.finish()
    assert run.engine.load().counts.recomputes > 0
    for kind in (Started, PrefillDone, Finished):
        assert sorted(e.request_id for e in run.events if isinstance(e, kind)) == ["r0", "r1"]


def test_nobody_is_let_in_by_a_step_that_preempted() -> None:
    run = EngineRun(context_length=8, num_pages=5, running_slots=4, headroom_tokens=1)
    for index in range(6):
        run.engine.submit(admitted(f"r{index}", [index], max_output_tokens=7, context_length=8))
    preemptions = 0
    while run.engine.has_work():
        before = {name for step in run.steps[-1:] for name, *_ in step}
        run.step()
        if run.engine.load().counts.recomputes > preemptions:
            preemptions = run.engine.load().counts.recomputes
            assert {name for name, *_ in run.steps[-1]} <= before
    assert preemptions > 0


def test_cached_pages_give_way_before_anyone_is_preempted() -> None:
    run = EngineRun(context_length=8, num_pages=4, running_slots=1)
    run.engine.submit(admitted("first", [1, 2, 3, 4], max_output_tokens=1, context_length=8))
    run.finish()
    assert run.engine.load().pages_cached == 2
    run.engine.submit(admitted("second", [9], max_output_tokens=7, context_length=8))
    run.finish()
    assert (run.engine.load().counts.recomputes, len(run.tokens("second"))) == (0, 7)


def test_without_headroom_a_newcomer_waits_instead_of_being_preempted() -> None:
    run = EngineRun(context_length=8, num_pages=5, running_slots=2, headroom_tokens=8)
    for name in ("first", "second"):
        run.engine.submit(admitted(name, [1], max_output_tokens=7, context_length=8))
    run.finish()
    assert run.engine.load().counts.recomputes == 0


def test_load_counts_requests_not_sequences() -> None:
    run = EngineRun(running_slots=2)
    run.engine.submit(admitted("a", [1], num_choices=4, max_output_tokens=9))
    run.engine.submit(admitted("b", [1], max_output_tokens=9))
    run.step(2)
    run.clock.now = 3.5
    load = run.engine.load()
    assert (load.running, load.waiting, load.paused, load.oldest_wait_seconds, load.counts.steps) == (1, 1, 0, 3.5, 2)
    assert load.pages_free + load.pages_used + load.pages_cached == 64


@pytest.mark.parametrize(
    "bounds", [{"running_slots": 0}, {"context_length": 0}, {"num_pages": 3, "context_length": 8}, {"page_size": 0}]
)
def test_impossible_bounds_are_refused(bounds: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"at least 1|exceeds the 3 pages"):
        EngineRun(**bounds)


def test_a_small_step_still_feeds_every_slot_and_one_page_of_prefill() -> None:
    run = EngineRun(step_tokens=1, running_slots=4, page_size=2)
    for index in range(4):
        run.engine.submit(admitted(f"r{index}", [index], max_output_tokens=20))
    run.step(10)
    assert [len(step) for step in run.steps[-3:]] == [4, 4, 4]
