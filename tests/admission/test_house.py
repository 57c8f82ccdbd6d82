"""Places in the house: bounded, given back once, and an honest guess when to come again."""

import pytest

from plimsoll_runtime.admission.house import RETRY_AFTER_MAX_SECONDS, House
from plimsoll_runtime.refusal import Refusal


@pytest.mark.parametrize(("running_slots", "max_waiting"), [(1, 0), (1, 2), (4, 128)])
def test_there_are_as_many_places_as_slots_and_waiters(running_slots: int, max_waiting: int) -> None:
    """B21: queues without a bound turned overload into waits and memory."""
    house = House(running_slots, max_waiting)
    assert all(house.enter() is None for _ in range(running_slots + max_waiting))
    refusal = house.enter()
    assert isinstance(refusal, Refusal)
    assert refusal.code == "rate_limit_exceeded"
    assert "--max-waiting" in refusal.message
    house.leave(1.0)
    assert house.enter() is None


def test_a_refused_request_holds_no_place() -> None:
    house = House(1, 0)
    house.enter()
    for _ in range(5):
        house.enter()
    house.leave(1.0)
    assert house.inside == 0


def test_a_place_cannot_be_given_back_twice() -> None:
    house = House(1, 0)
    with pytest.raises(AssertionError):
        house.leave(1.0)


@pytest.mark.parametrize("seconds", [0.0, 0.001, 5.0, 100_000.0])
def test_retry_after_is_whole_seconds_between_1_and_60(seconds: float) -> None:
    """An SDK sleeps as it is told: 0 would be a busy loop, and minutes would look like a hang."""
    house = House(2, 0)
    for _ in range(100):
        house.enter()
        house.leave(seconds)
    assert 1 <= house.retry_after_seconds() <= RETRY_AFTER_MAX_SECONDS


def test_retry_after_follows_how_long_requests_stay() -> None:
    house = House(2, 0)
    for _ in range(100):
        house.enter()
        house.leave(20.0)
    assert house.retry_after_seconds() == 10
