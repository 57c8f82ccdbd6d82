"""When a choice ends, and as what: exact counts of sampled ids, end tokens included."""

from typing import Any

import pytest

from doubles.admitted_requests import admitted
from doubles.engine_runs import EngineRun
from doubles.scripted_model import write
from plimsoll_runtime.events import Expired, FinishDetail, Finished, PrefillDone, Started, Token

END = 3
CASES: list[tuple[str, list[int], int | None, dict[str, Any], list[int], tuple[str, str | None]]] = [
    # Before: a run cut by its limit of L gave L - 1 tokens, and a limit of 1 gave none.
    ("B02 one token", [7], 1, {}, [7], ("length", "request")),
    ("B02 five tokens", [7], 5, {}, [7] * 5, ("length", "request")),
    ("B02 the end token is the last granted one", [7, 7, END], 3, {}, [7, 7, END], ("stop", None)),
    ("B02 the end token would be one too many", [7, 7, END], 2, {}, [7, 7], ("length", "request")),
    ("D12 the end token is counted", [7, END], 9, {}, [7, END], ("stop", None)),
    ("end at once", [END], 9, {}, [END], ("stop", None)),
    ("a stop token below min_tokens ends nothing", [END], 5, {"min_tokens": 3}, [END] * 3, ("stop", None)),
    # Before: without a limit the window was shifted and the run never ended.
    ("B14 no limit ends at the context", [7], None, {"context_length": 8}, [7] * 6, ("length", "context")),
    ("exact fit is the request's own limit", [7], 6, {"context_length": 8}, [7] * 6, ("length", "request")),
]


@pytest.mark.parametrize(("script", "limit", "values", "ids", "end"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_ends_exactly(
    script: list[int], limit: int | None, values: dict[str, Any], ids: list[int], end: tuple[str, str | None]
) -> None:
    run = EngineRun(write(script), context_length=8)
    values = {"context_length": 8, "stop_token_ids": frozenset({END}), **values}
    run.engine.submit(admitted("r", [1, 2], max_output_tokens=limit, **values))
    run.finish()
    assert run.tokens("r") == ids
    assert run.ends("r") == [(0, *end)]
    assert run.engine.load().pages_used == 0


def test_says_everything_once_and_in_order() -> None:
    run = EngineRun()
    run.engine.submit(admitted("r", [1, 2, 3], max_output_tokens=2))
    assert run.finish() == [
        Started("r"),
        PrefillDone("r", 0, cached_tokens=0),
        Token("r", 0, 7),
        Token("r", 0, 7),
        Finished("r", 0, "length", FinishDetail("request", 2)),
    ]


def test_the_slot_is_free_within_one_step_of_the_end() -> None:
    """B14: a run without an end held its only slot for ever."""
    run = EngineRun(running_slots=1, context_length=8, num_pages=4)
    run.engine.submit(admitted("endless", [1, 2], context_length=8))
    run.engine.submit(admitted("next", [1, 2], max_output_tokens=1, context_length=8))
    run.step(6)
    assert run.ends("endless") == [(0, "length", "context")]
    run.step()
    assert run.ends("next") == [(0, "length", "request")]


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_n_makes_so_many_choices_and_prefills_once(slots: int) -> None:
    """B15: `n` was accepted and gave one choice; with few slots it waited for itself for ever."""
    run = EngineRun(running_slots=slots, page_size=4)
    run.engine.submit(admitted("r", list(range(9)), max_output_tokens=5, num_choices=3))
    run.finish()
    assert sorted(run.ends("r")) == [(choice, "length", "request") for choice in range(3)]
    assert [run.tokens("r", choice) for choice in range(3)] == [[7] * 5] * 3
    # 9 prompt tokens once; of the two others only what follows the last full page; 4 decoded tokens for each.
    assert sum(chunk[3] for step in run.steps for chunk in step) == 9 + 2 * 1 + 3 * 4


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_choices_report_what_earlier_requests_had_computed(prefix_caching: bool) -> None:
    """Siblings share pages, which is no cached prompt: their number is that of the choice that prefilled."""
    run = EngineRun(running_slots=1, prefix_caching=prefix_caching)
    for name in ("first", "second"):
        run.engine.submit(admitted(name, list(range(9)), max_output_tokens=1, num_choices=2))
    run.finish()
    cached = {(e.request_id, e.choice): e.cached_tokens for e in run.events if isinstance(e, PrefillDone)}
    again = 8 if prefix_caching else 0
    assert cached == {("first", 0): 0, ("first", 1): 0, ("second", 0): again, ("second", 1): again}


def test_each_prompt_has_its_own_grant() -> None:
    run = EngineRun(context_length=8)
    run.engine.submit(admitted("r", [1], [1, 2, 3, 4, 5], context_length=8, num_choices=2))
    run.finish()
    assert [len(run.tokens("r", choice)) for choice in range(4)] == [7, 7, 3, 3]


@pytest.mark.parametrize(
    ("now", "said"),
    [(4.9, []), (5.0, [Expired("late")]), (99.0, [Expired("late")])],
)
def test_waiting_past_the_queue_deadline_expires_once(now: float, said: list[Expired]) -> None:
    """B22: requests waited without a bound, and were computed long after their clients had gone."""
    run = EngineRun(running_slots=1)
    run.engine.submit(admitted("long", [1], max_output_tokens=60))
    run.engine.submit(admitted("late", [1], [2], num_choices=2, queue_deadline=5.0))
    run.step()
    run.clock.now = now
    assert [event for event in run.step() if event.request_id == "late"] == said
    assert run.engine.load().waiting == (0 if said else 1)
    assert not any(chunk[0] == "late" for step in run.steps for chunk in step)


def test_the_queue_deadline_ends_with_the_first_slot() -> None:
    run = EngineRun(running_slots=1)
    run.engine.submit(admitted("r", [1], max_output_tokens=3, num_choices=2, queue_deadline=5.0))
    run.step()
    run.clock.now = 6.0
    run.finish()
    assert run.ends("r") == [(0, "length", "request"), (1, "length", "request")]


def test_a_deadline_ends_every_choice_with_what_it_has() -> None:
    run = EngineRun(running_slots=2)
    run.engine.submit(admitted("r", [1], num_choices=3, deadline=5.0))
    run.step(4)
    run.clock.now = 5.0
    run.step()
    assert run.ends("r") == [(choice, "length", "deadline") for choice in range(3)]
    assert [len(run.tokens("r", choice)) for choice in range(3)] == [4, 3, 0]
    assert (run.engine.load().running, run.engine.load().pages_used, run.engine.has_work()) == (0, 0, False)


def test_a_deadline_before_any_slot_is_an_expiry() -> None:
    run = EngineRun(running_slots=1)
    run.engine.submit(admitted("long", [1]))
    run.engine.submit(admitted("r", [1], deadline=5.0))
    run.step()
    run.clock.now = 5.0
    assert Expired("r") in run.step()
