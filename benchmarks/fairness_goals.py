"""What the seed replay has to show, each goal as a line of the table: a number, its bound, met or missed.

In: replays of every seed, or the answers of real servers. Out: `Figure`s. The goals are those of one slot.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fairness_answers import Answer, equal_texts, jain_index, percentile, told_waits
from fairness_replay import Replay
from fairness_scenes import innocent_share, lone_short_seconds, lone_short_steps, normal_latencies
from fairness_trace import NUM_ENTRIES
from table import Figure

P99_OVER_FLOOR, MAX_OVER_FLOOR, LONGEST_SECONDS = 1.3, 1.5, 200.0
TOLD_OF_ESTIMATES = {
    "likely wait, median error": "",
    "likely wait, median error in seconds": "s",
    "waits from soonest to latest": "",
}
MAKESPAN_OVER_FIFO, LONE_SHORT_STEPS, INNOCENT_OVER_SHARE = 1.01, 2.0, 1.1


def goals_of_replay(by_seed: Mapping[int, Mapping[str, Replay]]) -> list[Figure]:
    """Over all seeds: the worst of each is what counts."""
    fair = [_ratios(arms, "fair") for arms in by_seed.values()]
    fifo = [_ratios(arms, "fifo") for arms in by_seed.values()]
    interactive = [_ratios(arms, "interactive") for arms in by_seed.values()]
    told = [arms["fair, SDK timeouts"].answers for arms in by_seed.values()]
    shares = [innocent_share(seed) for seed in by_seed]
    worst_share = max(share for share, _ in shares)
    return [
        _at_most("p99 over the floor, fair", "x", max(p99 for p99, _ in fair), P99_OVER_FLOOR),
        _told("p99 over the floor, interactive", "x", max(p99 for p99, _ in interactive)),
        _told("p99 over the floor, fifo", "x", max(p99 for p99, _ in fifo)),
        _at_most("longest over the floor's longest, fair", "x", max(most for _, most in fair), MAX_OVER_FLOOR),
        _at_most("longest normal answer, fair", "s", _longest(by_seed.values(), "fair"), LONGEST_SECONDS),
        _at_most("makespan over fifo's, fair", "x", max(map(_makespan_ratio, by_seed.values())), MAKESPAN_OVER_FIFO),
        _at_most("lone short behind a long runaway, fair", "steps", lone_short_steps("fair"), LONE_SHORT_STEPS),
        _told("lone short behind a new runaway, fair", "s", lone_short_seconds("fair", 0)),
        _told("lone short behind a new runaway, interactive", "s", lone_short_seconds("interactive", 0)),
        _told("lone short behind a new runaway, fifo", "s", lone_short_seconds("fifo", 0)),
        _at_least("complete answers, fair", min(_complete(arms["fair"].answers) for arms in by_seed.values())),
        _at_most("client timeouts, SDKs and fair", "", _sum(told, "gave_up"), 0),
        _at_most("tokens wasted, SDKs and fair", "", _sum(told, "wasted_tokens"), 0),
        _at_most("tokens recomputed, fair", "", sum(_recomputed(arms["fair"]) for arms in by_seed.values()), 0),
        _at_most("innocent tenant's p99 over its fair share", "x", worst_share, INNOCENT_OVER_SHARE),
        _told("Jain index of two tenants, the smallest", "", min(_jain(replay) for _, replay in shares)),
        *(line for name in ("fair", "interactive", "fifo") for line in _truth_of_estimates(by_seed.values(), name)),
    ]


def goals_of_served(arms: Mapping[str, Sequence[Answer]]) -> list[Figure]:
    """Of what was measured at one slot; what was not is left out."""
    goals: list[Figure] = []
    solo = arms.get("fifo", ())
    over = {name: _p99(arms[name]) / _p99(arms["floor"]) for name in arms} if "floor" in arms else {}
    if "fair" in over:
        goals.append(_at_most("p99 over the floor, fair", "x", over["fair"], P99_OVER_FLOOR))
    for name in ("interactive", "fifo", "llama.cpp"):
        goals += [_told(f"p99 over the floor, {name}", "x", over[name])] if name in over else []
    if "fair" in arms and solo:
        longest = max(answer.ended for answer in arms["fair"]) / max(answer.ended for answer in solo)
        goals.append(_at_most("makespan over fifo's, fair", "x", longest, MAKESPAN_OVER_FIFO))
    goals += [
        _at_least(f"outputs equal to solo, {name}", equal_texts(arms[name], solo))
        for name in ("fair", "interactive")
        if name in arms and solo
    ]
    if "fair, SDK timeouts" in arms:
        goals.append(_at_most("client timeouts, SDKs and fair", "", _sum([arms["fair, SDK timeouts"]], "gave_up"), 0))
    return goals


def _ratios(arms: Mapping[str, Replay], name: str) -> tuple[float, float]:
    """p99 and longest of the normal answers over those of the floor."""
    ours, floor = normal_latencies(arms[name].answers), normal_latencies(arms["floor"].answers)
    return percentile(ours, 99) / percentile(floor, 99), max(ours) / max(floor)


def _longest(seeds: Iterable[Mapping[str, Replay]], name: str) -> float:
    return max(max(normal_latencies(arms[name].answers)) for arms in seeds)


def _makespan_ratio(arms: Mapping[str, Replay]) -> float:
    fair, fifo = (max(answer.ended for answer in arms[name].answers) for name in ("fair", "fifo"))
    return fair / fifo


def _truth_of_estimates(seeds: Iterable[Mapping[str, Replay]], name: str) -> Iterator[Figure]:
    """Over the waits of all seeds together."""
    answers = [answer for arms in seeds for answer in arms[name].answers]
    truth = told_waits([wait for answer in answers for wait in answer.waits])
    for figure, unit in TOLD_OF_ESTIMATES.items():
        value = truth[figure]
        assert value is not None, "clients without think time wait, whatever the preset"
        yield _told(f"{figure}, {name}", unit, value)


def _complete(answers: Sequence[Answer]) -> int:
    return sum(answer.is_complete for answer in answers)


def _recomputed(replay: Replay) -> int:
    return replay.counts.recomputed_tokens or 0


def _jain(replay: Replay) -> float:
    index = jain_index(list(replay.counts.tenant_tokens.values()))
    assert index is not None, "a replay with two keys has two tenants"
    return index


def _p99(answers: Sequence[Answer]) -> float:
    return percentile(normal_latencies(answers), 99)


def _sum(runs: Sequence[Sequence[Answer]], field: str) -> int:
    return sum(getattr(answer, field) for answers in runs for answer in answers)


def _at_most(name: str, unit: str, value: float, bound: float) -> Figure:
    return Figure(name, unit, {"value": value}, f"at most {bound:g}", value <= bound + 1e-9)


def _at_least(name: str, value: float, bound: float = NUM_ENTRIES) -> Figure:
    return Figure(name, "", {"value": value}, f"at least {bound:g}", value >= bound)


def _told(name: str, unit: str, value: float) -> Figure:
    return Figure(name, unit, {"value": value})
