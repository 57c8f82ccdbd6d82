"""Places in the house: bounded, given back once, not given where they would be useless, and when to come again."""

import pytest

from admission.test_wait_estimate import GRANT, STEP_SECONDS, Inside, Load
from plimsoll_runtime.admission.deadlines import Times
from plimsoll_runtime.admission.house import FRESH_SECONDS, RETRY_AFTER_MAX_SECONDS, House
from plimsoll_runtime.admission.wait_estimate import SlotRules
from plimsoll_runtime.contract.endpoints import CHAT_COMPLETIONS
from plimsoll_runtime.refusal import Refusal

UNKNOWN = Load((), 0.0)
PATIENT = Times(0.0, 120.0, 600.0, "raise --queue-timeout")


def house(running_slots: int, max_waiting: int) -> House:
    return House(SlotRules(running_slots), max_waiting, lambda tenant: 1)


def times(arrival: float, patience: float) -> Times:
    return Times(arrival, arrival + patience, arrival + 600, "raise --queue-timeout")


@pytest.mark.parametrize(("running_slots", "max_waiting"), [(1, 0), (1, 2), (4, 128)])
def test_there_are_as_many_places_as_slots_and_waiters(running_slots: int, max_waiting: int) -> None:
    """B21: queues without a bound turned overload into waits and memory."""
    places = house(running_slots, max_waiting)
    assert all(places.enter(UNKNOWN, "a", PATIENT) is None for _ in range(running_slots + max_waiting))
    refusal = places.enter(UNKNOWN, "a", PATIENT)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "rate_limit_exceeded"
    assert "--max-waiting" in refusal.message
    places.leave()
    assert places.enter(UNKNOWN, "a", PATIENT) is None


def test_a_refused_request_holds_no_place() -> None:
    places = house(1, 0)
    for _ in range(6):
        places.enter(UNKNOWN, "a", PATIENT)
    places.leave()
    assert places.inside == 0


def test_a_place_cannot_be_given_back_twice() -> None:
    with pytest.raises(AssertionError):
        house(1, 0).leave()


def experienced(running_slots: int, length: int, max_waiting: int = 100) -> House:
    """A house that is full of running requests, where answers have been about `length` tokens long."""
    places = house(running_slots, max_waiting)
    for _ in range(400):
        places.lengths.learn(CHAT_COMPLETIONS, "a", length, by_itself=True)
    for _ in range(running_slots):
        assert places.enter(UNKNOWN, "a", PATIENT) is None
    return places


WAITERS = Load((Inside(), *(Inside("waiting") for _ in range(20))))


def test_who_cannot_start_in_time_is_refused_at_once_and_told_when_to_come() -> None:
    """Elsewhere such a request waited for its whole patience, and was refused then."""
    places = experienced(1, 800)
    assert places.enter(WAITERS, "a", times(0, 600)) is None
    refusal = places.enter(WAITERS, "a", times(0, 100))
    assert isinstance(refusal, Refusal)
    assert refusal.wait_estimate_seconds == pytest.approx(21 * 800 * STEP_SECONDS, rel=0.15)
    assert refusal.retry_after_seconds == RETRY_AFTER_MAX_SECONDS
    assert "at most 100 s" in refusal.message
    assert "--queue-timeout" in refusal.message
    assert places.inside == 2


def test_whom_even_one_lucky_course_would_serve_is_let_in() -> None:
    """Nothing is refused that could succeed: half of all answers behind which it waits might be short."""
    places = house(1, 100)
    places.enter(UNKNOWN, "a", PATIENT)
    assert places.enter(Load((Inside(max_output_tokens=GRANT),)), "a", times(0, 1)) is None


@pytest.mark.parametrize(("length", "seconds"), [(16, 1), (800, 14), (30_000, 60)])
def test_a_full_house_says_when_a_place_should_be_free(length: int, seconds: int) -> None:
    """An SDK sleeps as it is told: 0 would be a busy loop, and minutes would look like a hang."""
    places = experienced(1, length, max_waiting=0)
    refusal = places.enter(Load((Inside(),)), "a", times(0, 600))
    assert isinstance(refusal, Refusal)
    assert refusal.retry_after_seconds is not None
    assert refusal.retry_after_seconds == pytest.approx(seconds, abs=2)
    assert 1 <= refusal.retry_after_seconds <= RETRY_AFTER_MAX_SECONDS


def test_who_waited_in_vain_is_told_as_much() -> None:
    refusal = experienced(1, 800).too_late(WAITERS, "a", times(0, 100), 100.0)
    assert (refusal.code, refusal.retry_after_seconds) == ("queue_timeout", RETRY_AFTER_MAX_SECONDS)
    assert "in 100 s" in refusal.message


def test_an_estimate_is_used_again_for_a_moment_and_not_longer() -> None:
    """A storm of requests must not cost an estimate each."""
    places = experienced(1, 800)
    assert isinstance(places.enter(WAITERS, "a", times(0, 100)), Refusal)
    nobody = Load((Inside("running", 799),))
    assert isinstance(places.enter(nobody, "a", times(FRESH_SECONDS / 2, 100)), Refusal)
    assert places.enter(nobody, "a", times(2 * FRESH_SECONDS, 100)) is None
