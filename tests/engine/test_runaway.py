"""What counts as going in circles, and above all what does not; and what becomes of an answer that does."""

import random
from typing import Any

import pytest

from doubles.admitted_requests import admitted
from doubles.engine_runs import EngineRun
from plimsoll_runtime.engine.runaway import Repetition, find_repetition, is_due
from plimsoll_runtime.engine.settings import Schedule
from plimsoll_runtime.events import FinishDetail, Finished


def random_ids(count: int, seed: int = 1) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(50_000) for _ in range(count)]


def periodic(period: int, length: int) -> list[int]:
    """Words before, then one block again and again, cut anywhere."""
    block = random_ids(period, seed=period)
    return random_ids(300) + (block * (length // period + 1))[:length]


FOUND: list[tuple[str, list[int], Repetition]] = [
    ("one token", [5] * 1024, Repetition(1, 1024)),
    ("one token, longer than the window", [5] * 9000, Repetition(1, 4096)),
    ("two tokens", [1, 2] * 600, Repetition(2, 600)),
    ("a line of 22", periodic(22, 1100), Repetition(22, 50)),
    ("256: four copies", periodic(256, 1024), Repetition(256, 4)),
    ("1,000: four copies", periodic(1000, 4000), Repetition(1000, 4)),
    ("1,024: the longest", periodic(1024, 4096), Repetition(1024, 4)),
    ("the smallest period", [1, 1, 2, 1, 1, 2] * 300, Repetition(3, 600)),
]


@pytest.mark.parametrize(("token_ids", "expected"), [case[1:] for case in FOUND], ids=[case[0] for case in FOUND])
def test_a_repetition_is_found_with_its_smallest_period(token_ids: list[int], expected: Repetition) -> None:
    assert find_repetition(token_ids) == expected


def table(rows: int) -> list[int]:
    """| name | number |, every row of the same shape."""
    return [token for row in range(rows) for token in (1, 700 + row % 50, 2, 3 + row, 2, 9, 9, 1, 10)]


def arithmetic(steps: int) -> list[int]:
    """a + b = c, step by step: the same words, other numbers."""
    return [token for step in range(steps) for token in (40, 1000 + step, 41, 1000 + 2 * step, 42, 1000 + 3 * step, 10)]


LEFT_ALONE: list[tuple[str, list[int]]] = [
    ("short", [5] * 1023),
    ("three copies of a long block", periodic(1024, 3 * 1024 + 900)),
    ("a block longer than the longest", periodic(1025, 4096)),
    ("three copies of 341 are no four", periodic(341, 1023)),
    ("words", random_ids(9000)),
    ("a table", table(900)),
    ("the rule of a table", [*random_ids(600), *[44, 45] * 100]),
    ("a list of numbers", [token for number in range(2000) for token in (500 + number, 11, 10)]),
    ("an array of zeros that ends", [*[0, 11] * 500, *random_ids(40)]),
    ("arithmetic", arithmetic(900)),
    ("a loop that was left", [*[5] * 3000, 6]),
    ("a log with a counter", [token for line in range(400) for token in (1, 2, 3, 4, 5, 6, 7, 100 + line, 8, 10)]),
    ("one odd token in the block before the last", [*periodic(64, 960), 1, *periodic(64, 960)[300:]]),
]


@pytest.mark.parametrize("token_ids", [case[1] for case in LEFT_ALONE], ids=[case[0] for case in LEFT_ALONE])
def test_what_only_looks_alike_is_left_alone(token_ids: list[int]) -> None:
    """Before, elsewhere: tables, lists and arithmetic ended in the middle, reported as a plain stop."""
    assert find_repetition(token_ids) is None


def test_no_false_positive_in_ten_thousand_tables_lists_and_logs() -> None:
    generator = random.Random(7)
    for _ in range(10_000):
        width, columns = generator.randrange(3, 30), generator.randrange(2, 6)
        shape = [generator.randrange(200) for _ in range(width)]
        row: list[int] = []
        for number in range(1100 // width + 1):
            cells = [1000 + (number * (column + 1)) % 977 for column in range(columns)]
            row += [*shape, *cells]
        assert find_repetition(row) is None


def test_it_is_looked_at_every_64_tokens_once_it_could_be_one() -> None:
    assert [count for count in range(1300) if is_due(count)] == [1024, 1088, 1152, 1216, 1280]


def repeating(**values: Any) -> EngineRun:
    settings = {"context_length": 4096, "num_pages": 4096, "running_slots": 1, **values.pop("settings", {})}
    run = EngineRun(**settings)
    run.engine.submit(admitted("r", [1], max_output_tokens=2000, context_length=4096, **values))
    return run


def test_stop_ends_it_and_says_why() -> None:
    run = repeating(stop_on_runaway=True, settings={"detects_runaways": False})
    run.finish(3000)
    [end] = [event for event in run.events if isinstance(event, Finished)]
    assert (end.reason, end.detail) == ("length", FinishDetail("repetition", 1024, period=1, copies=1024))
    assert len(run.tokens("r")) == 1024
    assert (run.engine.load().counts.repetition_stops, run.engine.load().counts.demotions) == (1, 0)


def test_observe_counts_it_once_and_lets_the_next_one_ahead() -> None:
    schedule = Schedule(thresholds=(1500,), weights=(7, 1), quantum_tokens=4)
    run = repeating(settings={"schedule": schedule})
    run.engine.submit(admitted("next", [2], max_output_tokens=3, context_length=4096))
    while not run.ends("next"):
        run.step()
    assert len(run.tokens("r")) == 1024
    run.finish(3000)
    assert run.ends("r") == [(0, "length", "request")]
    assert len(run.tokens("r")) == 2000
    assert (run.engine.load().counts.repetition_stops, run.engine.load().counts.demotions) == (0, 1)


def test_off_looks_at_nothing() -> None:
    run = repeating(settings={"detects_runaways": False})
    run.finish(3000)
    assert (len(run.tokens("r")), run.engine.load().counts.demotions) == (2000, 0)
