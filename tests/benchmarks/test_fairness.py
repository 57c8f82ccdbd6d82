"""The first report's case under the virtual clock: what must hold always, and the goals of one seed."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from fairness_answers import Answer, Counts, EstimatedWait, Pace, figures, jain_index, percentile, told_waits
from fairness_goals import goals_of_served
from fairness_replay import Replay, run_replay
from fairness_scenes import (
    SEED_PACE,
    innocent_share,
    lone_short_seconds,
    lone_short_steps,
    normal_latencies,
    play_arms,
    replay_arms,
)
from fairness_trace import (
    NUM_CLIENTS,
    NUM_ENTRIES,
    RUNAWAYS,
    TWO_KEYS,
    Desk,
    Entry,
    innocent,
    seed_trace,
    without_runaways,
)

SEED = 7
COARSE = 64
"""Tokens of the trace for each one of the scheduler, where figures do not matter."""


@pytest.fixture(scope="module")
def replays() -> Mapping[str, Replay]:
    arms = {name: replace(arm, grain=COARSE) for name, arm in replay_arms(1).items()}
    return play_arms(SEED, arms)


def test_the_trace_is_the_report_s() -> None:
    trace = seed_trace(SEED)
    assert len(trace) == NUM_ENTRIES
    assert {entry.number for entry in trace if entry.is_runaway} == RUNAWAYS
    assert sum(entry.output_tokens for entry in trace if entry.is_runaway) == 3 * 32_767
    assert all(60 <= entry.output_tokens <= 4000 for entry in trace if not entry.is_runaway)
    assert trace == seed_trace(SEED)


def test_with_two_keys_each_client_has_its_own_work() -> None:
    desk = Desk(seed_trace(SEED, tenants=TWO_KEYS), TWO_KEYS)
    owned = []
    while (entry := desk.next_for(NUM_CLIENTS - 1)) is not None:
        owned.append(entry)
    assert {entry.number for entry in owned} >= RUNAWAYS
    first = desk.next_for(0)
    assert first is not None
    assert first.client is None
    assert len(owned) + len(innocent(seed_trace(SEED, tenants=TWO_KEYS))) == NUM_ENTRIES


@pytest.mark.parametrize("name", ["floor", "fifo", "fair", "interactive", "fair, 1 context a slot"])
def test_every_answer_is_complete_and_nothing_is_computed_twice(replays: Mapping[str, Replay], name: str) -> None:
    replay = replays[name]
    assert sorted(answer.entry.number for answer in replay.answers) == list(range(NUM_ENTRIES))
    assert all(answer.is_complete for answer in replay.answers)
    assert sum(answer.wasted_tokens for answer in replay.answers) == 0
    assert replay.counts.recomputed_tokens == 0
    assert all(answer.sent <= answer.got_slot <= answer.first_token <= answer.ended for answer in replay.answers)


def test_where_pages_are_short_the_paused_move_to_the_host_and_lose_nothing(replays: Mapping[str, Replay]) -> None:
    assert replays["fair"].counts.swaps == 0
    assert (replays["fair, 1 context a slot"].counts.swaps or 0) > 0


def test_no_slot_idles_for_fairness(replays: Mapping[str, Replay]) -> None:
    ends = {name: max(answer.ended for answer in replays[name].answers) for name in ("fifo", "fair", "interactive")}
    assert ends["fair"] == pytest.approx(ends["fifo"], rel=1e-6)
    assert ends["interactive"] == pytest.approx(ends["fifo"], rel=1e-6)


def test_a_runaway_harms_its_neighbours_under_fifo_and_not_under_fair(replays: Mapping[str, Replay]) -> None:
    """The first report: one answer of 32,767 tokens, and everyone behind it waited 8.5 minutes."""
    p99 = {name: percentile(normal_latencies(replays[name].answers), 99) for name in ("floor", "fifo", "fair")}
    assert p99["fifo"] > 4 * p99["floor"]
    assert p99["fair"] < 1.3 * p99["floor"]


def test_interactive_begins_soon_and_lets_the_longer_ones_end(replays: Mapping[str, Replay]) -> None:
    """With levels between that went round, the longer normal answers were all late: 1.6 times the floor here."""
    floor, interactive = replays["floor"].answers, replays["interactive"].answers
    first = percentile([answer.first_token - answer.sent for answer in interactive if not answer.entry.is_runaway], 99)
    assert first < 40
    assert percentile(normal_latencies(interactive), 99) < 1.3 * percentile(normal_latencies(floor), 99)


def test_sdks_are_answered_before_they_hang_up(replays: Mapping[str, Replay]) -> None:
    """Sliced, a plain runaway would take an hour: the client gives up at 600 s and asks for all of it again."""
    without, told = replays["fifo, SDK timeouts"].answers, replays["fair, SDK timeouts"].answers
    assert sum(answer.gave_up for answer in without) > 0
    assert sum(answer.wasted_tokens for answer in without) > 0
    assert not any(answer.gave_up or answer.wasted_tokens or answer.has_failed for answer in told)
    assert {answer.entry.number for answer in told if answer.was_cut} == RUNAWAYS
    assert max(answer.latency for answer in told) < 600


@pytest.mark.parametrize("name", ["floor", "fifo", "fair", "fair, SDK timeouts"])
def test_a_newcomer_s_wait_is_estimated_without_knowing_any_length(replays: Mapping[str, Replay], name: str) -> None:
    """Four in five are expected between the soonest and the latest; the first twenty answers are all to learn from."""
    truth = told_waits([wait for answer in replays[name].answers for wait in answer.waits])
    inside, error = truth["waits from soonest to latest"], truth["likely wait, median error"]
    assert inside is not None
    assert error is not None
    assert 0.7 < inside < 0.9
    assert error < 0.3


def test_each_try_that_got_a_slot_has_its_own_estimate_but_the_first_ones(replays: Mapping[str, Replay]) -> None:
    """Four come at once, when the engine's speed is unknown."""
    counted = {name: sum(len(answer.waits) for answer in replays[name].answers) for name in replays}
    assert counted["fifo"] == counted["fair"] == NUM_ENTRIES - NUM_CLIENTS
    assert counted["fifo, SDK timeouts"] > NUM_ENTRIES - NUM_CLIENTS


def test_the_truth_of_estimates_by_hand() -> None:
    waits = [EstimatedWait(1, 2, 3, 4), EstimatedWait(1, 2, 3, 2), EstimatedWait(0, 1, 1, 0), EstimatedWait(2, 6, 9, 4)]
    truth = told_waits(waits)
    assert truth["wait estimates"] == 4
    assert truth["likely wait, median error"] == 0.5
    assert truth["likely wait, median error in seconds"] == 1.5
    assert truth["waits from soonest to latest"] == 0.75
    assert set(told_waits([]).values()) == {None}


def test_the_floor_alone_is_the_same_under_fair_as_under_fifo() -> None:
    """With nobody beyond the default output limit the schedule is first come, first served, and nothing else."""
    arms = replay_arms(1)
    trace = without_runaways(seed_trace(SEED))
    fair, fifo = (run_replay(trace, replace(arms[name], grain=COARSE), SEED_PACE) for name in ("fair", "fifo"))
    schedules = [[replace(answer, waits=()) for answer in replay.answers] for replay in (fair, fifo)]
    assert schedules[0] == schedules[1]


def test_a_lone_short_behind_a_runaway_waits_for_one_step() -> None:
    assert lone_short_steps("fair") <= 2
    assert lone_short_steps("interactive") <= 2
    assert lone_short_seconds("interactive", 0) < lone_short_seconds("fair", 0) < 75
    assert lone_short_seconds("fifo", 0) > 500


def test_an_innocent_tenant_has_its_fair_share() -> None:
    ratio, replay = innocent_share(SEED, grain=COARSE)
    assert ratio <= 1.1
    index = jain_index(list(replay.counts.tenant_tokens.values()))
    assert index is not None
    assert index > 0.99


def test_goals_say_what_is_missed(replays: Mapping[str, Replay]) -> None:
    arms = {name: replays[name].answers for name in ("floor", "fifo")}
    goals = {goal.name: goal for goal in goals_of_served({**arms, "fair": arms["fifo"]})}
    assert goals["p99 over the floor, fair"].met is False
    assert goals["makespan over fifo's, fair"].met is True


def test_figures_of_few_answers_by_hand() -> None:
    answers = [_answer(0, sent=0, started=1, first=2, ended=10), _answer(1, sent=0, started=3, first=4, ended=100)]
    made = figures(answers, Counts(), Pace(10.0, 1.0), [_answer(0, 0, 0, 0, 10), _answer(1, 0, 0, 0, 10)])
    assert made["latency, mean"] == 55
    assert made["latency, max"] == 100
    assert made["queue wait, p50"] == 1
    assert made["TTFT, max"] == 4
    assert made["slowdown, max"] == 100 / (1 + 10 / 10)
    assert made["more than 60 s over the floor"] == 1
    assert figures(answers, Counts(), Pace(10.0, 1.0), answers, divide=16)["more than 3.75 s over the floor"] == 0
    assert made["makespan"] == 100
    assert made["slowest runaway"] is None
    assert made["Jain index"] is None
    assert made["outputs equal to solo"] is None


def test_outputs_are_compared_with_those_of_the_same_entries_alone() -> None:
    ours = [replace(_answer(number, 0, 1, 2, 3), text=text) for number, text in enumerate("abc")]
    solo = [replace(_answer(number, 0, 1, 2, 3), text=text) for number, text in ((2, "c"), (1, "x"), (0, "a"))]
    assert figures(ours, Counts(), Pace(10.0, 1.0), ours, solo)["outputs equal to solo"] == 2


@pytest.mark.parametrize(("shares", "index"), [([1.0, 1.0], 1.0), ([1.0, 0.0], 0.5), ([3.0, 1.0], 0.8)])
def test_the_jain_index(shares: list[float], index: float) -> None:
    assert jain_index(shares) == pytest.approx(index)


def _answer(number: int, sent: float, started: float, first: float, ended: float) -> Answer:
    entry = Entry(number, 10)
    return Answer(entry, "", sent, started, first, ended, output_tokens=10, longest_gap=0.0)
