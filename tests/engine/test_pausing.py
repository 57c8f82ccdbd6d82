"""What a client and a neighbour see of a sequence that is paused, moved to host memory and back: nothing but time."""

from typing import Any

import pytest
import torch

from doubles.admitted_requests import admitted
from doubles.engine_runs import VOCAB_SIZE, EngineRun
from doubles.kv_caches import float_cache
from doubles.paged_memory import PagedMemory, continuation
from plimsoll_runtime.engine.host_kv import HostKV, HostKVFullError
from plimsoll_runtime.engine.runner import ModelRunner
from plimsoll_runtime.engine.settings import Schedule
from plimsoll_runtime.events import Aborted, Expired, FinishDetail, Finished, Paused, Resumed, Started

CONTEXT = 40
SCHEDULE = Schedule(thresholds=(4,), weights=(7, 1), quantum_tokens=3, max_wait_seconds=1e9)


class BrokenHost(HostKV):
    """A host that has no memory left."""

    def take(self, owner: Any, pages: Any, state_slot: int | None) -> None:
        raise HostKVFullError("no memory")


def make_run(host_type: type[HostKV] = HostKV, **values: Any) -> EngineRun:
    """A decoder whose next token depends on all that it reads back, on pages for little more than one context."""
    values = {"num_pages": 24, "host_pages": 100, "running_slots": 1, "schedule": SCHEDULE, **values}
    cache = float_cache(values["num_pages"], 2, num_states=values.get("num_states", 0))
    runner = ModelRunner(PagedMemory(VOCAB_SIZE), cache, 2, "cpu")
    return EngineRun(runner=runner, host=host_type(cache, 2), context_length=CONTEXT, **values)


def submit(run: EngineRun, name: str, prompt: list[int], **values: Any) -> None:
    run.engine.submit(admitted(name, prompt, context_length=CONTEXT, **values))


def check_answers(run: EngineRun, prompts: dict[str, list[int]]) -> None:
    for name, prompt in prompts.items():
        tokens = run.tokens(name)
        assert tokens == continuation(prompt, len(tokens), VOCAB_SIZE)


HOSTS: list[tuple[str, type[HostKV], int, tuple[bool, bool]]] = [
    ("the host has room", HostKV, 100, (True, False)),
    ("no host memory", HostKV, 0, (False, True)),
    ("the host fails", BrokenHost, 100, (False, True)),
    ("the host is too small for most", HostKV, 8, (True, True)),
]


@pytest.mark.parametrize(("host_type", "host_pages", "kinds"), [h[1:] for h in HOSTS], ids=[h[0] for h in HOSTS])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_moved_or_computed_again_it_writes_what_it_would_have_written(
    host_type: type[HostKV], host_pages: int, kinds: tuple[bool, bool], prefix_caching: bool
) -> None:
    """B24: what came back from elsewhere was another's, or its own from another time."""
    run = make_run(host_type, host_pages=host_pages, prefix_caching=prefix_caching, running_slots=2)
    prompts = {f"r{index}": [1, 2, 3, 4, index, index] for index in range(6)}
    for name, prompt in prompts.items():
        submit(run, name, prompt, max_output_tokens=30, num_choices=1)
        run.step(7)
    run.finish()
    check_answers(run, prompts)
    counts = run.engine.load().counts
    assert (counts.swaps > 0, counts.recomputes > 0) == kinds
    assert counts.swapped_out_bytes == (0 if counts.swaps == 0 else counts.swapped_in_bytes)
    assert run.engine.load().pages_used == 0


def test_choices_that_share_pages_are_moved_with_copies_of_their_own() -> None:
    run = make_run(running_slots=2)
    submit(run, "three", [1, 2, 3, 4, 5], num_choices=3, max_output_tokens=25)
    run.step(12)
    submit(run, "other", [9] * 9, max_output_tokens=25)
    run.finish()
    assert run.engine.load().counts.swaps > 0
    for choice in range(3):
        assert run.tokens("three", choice) == continuation([1, 2, 3, 4, 5], 25, VOCAB_SIZE)
    check_answers(run, {"other": [9] * 9})


def paused_run(**values: Any) -> EngineRun:
    """`long` is paused on its pages while `short` runs."""
    run = make_run(**{"num_pages": 60, **values})
    submit(run, "long", [1], max_output_tokens=30, deadline=100.0)
    run.step(10)
    submit(run, "short", [2], max_output_tokens=3)
    run.step()
    return run


def test_pauses_are_said_once_and_counted() -> None:
    run = paused_run()
    load = run.engine.load()
    assert (load.running, load.waiting, load.paused, load.counts.pauses) == (1, 0, 1, 1)
    assert [(s.state, s.level, s.output_tokens) for s in load.sequences] == [("paused", 1, 10), ("running", 0, 1)]
    run.finish()
    said = [event for event in run.events if isinstance(event, Started | Paused | Resumed | Finished)]
    assert said == [
        Started("long"),
        Started("short"),
        Paused("long"),
        Finished("short", 0, "length", FinishDetail("request", 3)),
        Resumed("long"),
        Finished("long", 0, "length", FinishDetail("request", 30)),
    ]
    assert [level.tokens for level in run.engine.load().levels] == [4 + 3, 26]


def swapped_run() -> EngineRun:
    run = make_run(num_pages=20)
    submit(run, "long", [1], max_output_tokens=39, deadline=100.0)
    run.step(30)
    submit(run, "short", [2] * 12, max_output_tokens=3)
    run.step()
    assert (run.engine.load().counts.swaps, run.engine.load().paused) == (1, 1)
    return run


@pytest.mark.parametrize("prepare", [paused_run, swapped_run])
def test_a_paused_request_that_is_left_is_gone_at_once(prepare: Any) -> None:
    """B36: in any state, within the present step."""
    run = prepare()
    run.engine.abort("long")
    run.engine.check_integrity()
    said = len(run.events)
    run.finish()
    assert run.ends("short") == [(0, "length", "request")]
    assert not any(event.request_id == "long" for event in run.events[said:])
    assert run.engine.load().counts.swapped_in_bytes == 0


@pytest.mark.parametrize("prepare", [paused_run, swapped_run])
def test_a_deadline_ends_the_paused_too(prepare: Any) -> None:
    run = prepare()
    run.clock.now = 100.0
    tokens = len(run.tokens("long"))
    run.step()
    assert run.ends("long") == [(0, "length", "deadline")]
    [end] = [e for e in run.events if isinstance(e, Finished) and e.request_id == "long"]
    assert end.detail == FinishDetail("deadline", tokens)
    assert run.engine.load().counts.deadline_truncations == 1


def test_a_deadline_can_abort_instead() -> None:
    run = make_run()
    submit(run, "r", [1], deadline=5.0, deadline_action="abort")
    submit(run, "behind", [1], deadline=5.0, deadline_action="abort")
    run.step(3)
    run.clock.now = 5.0
    assert run.step() == [Aborted("r"), Expired("behind")]
    assert (run.ends("r"), run.engine.has_work(), run.engine.load().pages_used) == ([], False, 0)


def test_a_request_waits_since_its_last_choice_lost_its_slot() -> None:
    """Before, since its first one had: a wait that the other choice was served in."""
    run = make_run(num_pages=60, running_slots=2)
    submit(run, "two", [1], num_choices=2, max_output_tokens=30)
    run.step(8)
    for name in ("a", "b"):
        run.clock.now += 10.0
        submit(run, name, [2], max_output_tokens=4)
        run.step()
    load = run.engine.load()
    assert (load.running, load.paused, load.oldest_wait_seconds) == (2, 1, 0.0)


def test_whose_pages_are_taken_with_its_slot_is_counted_once() -> None:
    """Before, as a pause and as a swap."""
    counts = swapped_run().engine.load().counts
    assert (counts.pauses, counts.swaps, counts.recomputes) == (0, 1, 0)


def test_a_device_that_cannot_gather_the_pages_is_a_full_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, only the host's own memory was expected to be short, and the engine died of the device's."""

    def full(*args: Any, **values: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    run = make_run(num_pages=20)
    monkeypatch.setattr(torch, "index_select", full)
    submit(run, "long", [1], max_output_tokens=39)
    run.step(30)
    submit(run, "short", [2] * 12, max_output_tokens=3)
    run.finish()
    counts = run.engine.load().counts
    assert (counts.swaps, counts.recomputes, counts.swapped_out_bytes) == (0, 1, 0)
    check_answers(run, {"long": [1], "short": [2] * 12})


def test_speed_is_known_after_two_steps_and_idle_time_is_no_slowness() -> None:
    run = EngineRun(running_slots=2)
    for name in ("a", "b"):
        run.engine.submit(admitted(name, [1], max_output_tokens=5))
    for _ in range(5):
        run.step()
        run.clock.now += 0.5
    load = run.engine.load()
    assert (load.seconds_per_step, load.tokens_per_second) == (0.5, 4.0)
    run.clock.now += 1000.0
    run.engine.submit(admitted("c", [1], max_output_tokens=1))
    run.finish()
    assert run.engine.load().seconds_per_step == 0.5
