"""The estimate of a wait: honest on simulated traffic, optimistic where it knows nothing, and bounded in time."""

import heapq
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import pytest

from plimsoll_runtime.admission.answer_lengths import AnswerLengths
from plimsoll_runtime.admission.wait_estimate import SlotRules, WaitEstimate, estimate_wait
from plimsoll_runtime.contract.endpoints import CHAT_COMPLETIONS, Route

STEP_SECONDS = 0.0168
GRANT = 32_767
D = 4096


@dataclass(frozen=True)
class Inside:
    state: Literal["waiting", "running", "paused"] = "running"
    output_tokens: int = 0
    max_output_tokens: int = GRANT
    level: int = 0
    tenant: str = "a"
    route: Route = CHAT_COMPLETIONS


@dataclass(frozen=True)
class Load:
    sequences: tuple[Inside, ...]
    seconds_per_step: float = STEP_SECONDS


def estimate(
    *sequences: Inside,
    lengths: AnswerLengths | None = None,
    rules: SlotRules | None = None,
    tenant: str = "a",
    weights: dict[str, int] | None = None,
) -> WaitEstimate:
    rules = SlotRules(1, D, (7, 1), by_tenant=True) if rules is None else rules
    lengths = AnswerLengths() if lengths is None else lengths
    known = estimate_wait(Load(sequences), lengths, rules, tenant, lambda name: (weights or {}).get(name, 1))
    assert known is not None
    return known


def learnt(length: int) -> AnswerLengths:
    lengths = AnswerLengths()
    for _ in range(400):
        lengths.learn(CHAT_COMPLETIONS, "a", length, by_itself=True)
    return lengths


def test_nothing_is_known_before_the_engine_has_a_speed() -> None:
    assert estimate_wait(Load((), 0.0), AnswerLengths(), SlotRules(1), "a", lambda tenant: 1) is None


def test_a_free_slot_needs_no_waiting() -> None:
    assert estimate(rules=SlotRules(1)) == WaitEstimate(0, 0, 0, 0)
    assert estimate(Inside(), rules=SlotRules(2)).latest == 0


def test_behind_a_runaway_of_the_last_level_nobody_waits() -> None:
    """The first report's case: 8.5 minutes behind one answer of 32,767 tokens."""
    runaway = Inside(output_tokens=10_000, level=1)
    assert estimate(runaway).latest == 0
    assert estimate(replace(runaway, level=0), rules=SlotRules(1)).likely > 60, (
        "served first come, first served it is a long wait"
    )


def test_nobody_is_waited_for_beyond_the_grant_or_the_first_level() -> None:
    for sequence in (Inside(output_tokens=4000, max_output_tokens=4010), Inside(output_tokens=D - 10)):
        assert estimate(sequence).latest <= 10 * STEP_SECONDS + 1e-9


def test_without_any_experience_the_soonest_start_is_soon() -> None:
    """Never refuse what could succeed: nothing is known, so even a short answer is likely."""
    assert estimate(Inside(), rules=SlotRules(1)).soonest < 4 * STEP_SECONDS


def test_two_slots_halve_the_wait_and_a_share_of_the_slot_stretches_it() -> None:
    lengths = learnt(800)
    waiting = [Inside("waiting") for _ in range(8)]
    one = estimate(*waiting, lengths=lengths).likely
    assert one == pytest.approx(8 * 800 * STEP_SECONDS, rel=0.2)
    two = estimate(*waiting, lengths=lengths, rules=SlotRules(2, D, (7, 1), by_tenant=True)).likely
    assert two == pytest.approx(one / 2, rel=0.1)
    beside_background = estimate(*waiting, Inside("paused", 9000, level=1), lengths=lengths).likely
    assert beside_background == pytest.approx(one * 8 / 7, rel=0.01)


def test_a_tenant_waits_for_its_own_and_by_its_weight() -> None:
    lengths = learnt(800)
    crowd = [Inside("waiting", tenant="b") for _ in range(20)]
    assert estimate(*crowd, lengths=lengths).latest == 0, "another tenant's queue is not one's own"
    alone = estimate(Inside("waiting"), lengths=lengths).likely
    shared = estimate(Inside("waiting"), *crowd, lengths=lengths, weights={"a": 3}).likely
    assert shared == pytest.approx(alone * 4 / 3, rel=0.01)


def test_the_same_load_gives_the_same_estimate() -> None:
    load = [Inside("waiting", tenant=tenant) for tenant in "abab"]
    assert estimate(*load) == estimate(*load)


@dataclass
class Traffic:
    """Requests come at random to `slots` lanes, first come, first served; lengths are lognormal, 1 in 60 runs away.

    Yields, for each that has to wait, its estimate and how long it waited in truth.
    """

    seed: int
    slots: int
    load: float
    now: float = 0.0
    lengths: AnswerLengths = field(default_factory=AnswerLengths)

    def waits(self, count: int) -> Iterator[tuple[WaitEstimate, float]]:
        rand = random.Random(self.seed)
        mean_seconds = 1500 * STEP_SECONDS
        free_at = [0.0] * self.slots
        inside: deque[tuple[float, float, int]] = deque()  # start, end, length
        for _ in range(count):
            self.now += rand.expovariate(self.slots * self.load / mean_seconds)
            for length in [length for _, end, length in inside if end <= self.now]:
                self.lengths.learn(CHAT_COMPLETIONS, "a", length, by_itself=length < GRANT)
            inside = deque(each for each in inside if each[1] > self.now)
            start = max(self.now, heapq.heappop(free_at))
            if start > self.now:
                sequences = tuple(self._seen(*each) for each in inside)
                known = estimate_wait(Load(sequences), self.lengths, SlotRules(self.slots), "a", lambda tenant: 1)
                assert known is not None
                yield known, start - self.now
            length = GRANT if rand.random() < 1 / 60 else min(4000, max(60, round(rand.lognormvariate(6.75, 0.55))))
            heapq.heappush(free_at, start + length * STEP_SECONDS)
            inside.append((start, start + length * STEP_SECONDS, length))

    def _seen(self, start: float, end: float, length: int) -> Inside:
        if start > self.now:
            return Inside("waiting")
        return replace(Inside(), output_tokens=int((self.now - start) / STEP_SECONDS))


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_on_simulated_traffic_the_truth_lies_where_the_estimate_says(slots: int) -> None:
    """The first hundred waits teach; of the rest four in five should lie between the soonest and the latest."""
    waits = [each for seed in range(4) for each in list(Traffic(seed, slots, 0.8).waits(400))[100:]]
    truth = np.array([wait for _, wait in waits])
    soonest, likely, latest = np.array([(each.soonest, each.likely, each.latest) for each, _ in waits]).T
    inside = float(np.mean((soonest <= truth) & (truth <= latest)))
    median_error = float(np.median(np.abs(likely - truth) / truth))
    too_late = float(np.mean(truth < soonest))
    print(f"{slots} slots, {len(waits)} waits: coverage {inside:.2f}, median error {median_error:.2f}, {too_late:.3f}")
    assert inside > 0.7
    assert median_error < 0.3
    assert too_late < 0.16, "a refusal by the soonest start is wrong so often"
