"""What became of the seed replay, and the figures that are made of it.

In: one `Answer` for each entry, from a virtual clock or a real server, and the `Counts` of the server. Out: figures by
name, in seconds and tokens. Normal answers are judged apart from runaways. It knows no scheduler and no HTTP.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fairness_trace import Entry

OVER_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class EstimatedWait:
    """The wait for a slot that was estimated when a request came, and how long it was: seconds."""

    soonest: float
    likely: float
    latest: float
    waited: float


@dataclass(frozen=True, slots=True)
class Answer:
    """Times are seconds since the replay began. `gave_up`: tries that the client ended itself, at its own timeout;
    `wasted_tokens` are those of such tries. `refusals`: tries that were answered with 429 or 529."""

    entry: Entry
    tenant: str
    sent: float
    got_slot: float
    first_token: float
    ended: float
    output_tokens: int
    longest_gap: float
    text: str = ""
    gave_up: int = 0
    wasted_tokens: int = 0
    refusals: int = 0
    was_cut: bool = False
    """Ended with fewer tokens than its entry has, at its deadline."""
    has_failed: bool = False
    """Never answered: the client gave up for good, or the server said an error."""
    waits: tuple[EstimatedWait, ...] = ()
    """Of each try that got a slot, where a wait was estimated."""

    @property
    def latency(self) -> float:
        return self.ended - self.sent

    @property
    def is_complete(self) -> bool:
        return not self.has_failed and self.output_tokens == self.entry.output_tokens


@dataclass(frozen=True, slots=True)
class Counts:
    """What the server counted; None is not known."""

    pauses: int | None = None
    swaps: int | None = None
    swapped_bytes: int | None = None
    recomputed_tokens: int | None = None
    peak_paused: int | None = None
    peak_pages: int | None = None
    tenant_tokens: Mapping[str, float] = field(default_factory=dict)
    """Weighted tokens served to each tenant while all of them had work."""

    def since(self, before: "Counts") -> "Counts":
        """What was counted after `before`."""
        return replace(
            self,
            pauses=_difference(self.pauses, before.pauses),
            swaps=_difference(self.swaps, before.swaps),
            swapped_bytes=_difference(self.swapped_bytes, before.swapped_bytes),
        )


@dataclass(frozen=True, slots=True)
class Pace:
    """What an answer costs that has the machine for itself: the measure of slowdown."""

    tokens_per_second: float
    prefill_seconds: float

    def own_seconds(self, output_tokens: int) -> float:
        return self.prefill_seconds + output_tokens / self.tokens_per_second


Figures = dict[str, float | None]


def figures(
    answers: Sequence[Answer],
    counts: Counts,
    pace: Pace,
    floor: Sequence[Answer],
    solo: Sequence[Answer] = (),
    divide: int = 1,
) -> Figures:
    """Every figure of one arm. `floor`: the same entries without runaways, for the comparisons with it; `solo`: each
    entry served alone, where answers have a text; `divide`: by how much lengths are shorter than the report's."""
    far_seconds = OVER_SECONDS / divide
    normal = [answer for answer in answers if not answer.entry.is_runaway]
    runaways = [answer for answer in answers if answer.entry.is_runaway]
    makespan = max(answer.ended for answer in answers)
    slowdowns = [answer.latency / pace.own_seconds(answer.entry.output_tokens) for answer in normal]
    return {
        **_spread("latency", [answer.latency for answer in normal]),
        **_spread("queue wait", [answer.got_slot - answer.sent for answer in normal]),
        **_spread("TTFT", [answer.first_token - answer.sent for answer in normal]),
        **_spread("slowdown", slowdowns),
        f"more than {far_seconds:g} s over the floor": _num_far_over(normal, floor, far_seconds),
        "slowest runaway": max((answer.latency for answer in runaways), default=None),
        "runaway tokens": sum(answer.output_tokens for answer in runaways),
        "makespan": makespan,
        "tokens/s": sum(answer.output_tokens for answer in answers) / makespan,
        "longest stall of a stream": max(answer.longest_gap for answer in answers),
        "preemptions": counts.pauses,
        "swaps": counts.swaps,
        "swapped bytes": counts.swapped_bytes,
        "tokens recomputed": counts.recomputed_tokens,
        "tokens wasted": sum(answer.wasted_tokens for answer in answers),
        "client timeouts": sum(answer.gave_up for answer in answers),
        "refusals": sum(answer.refusals for answer in answers),
        "refused, later answered": sum(1 for answer in answers if answer.refusals and not answer.has_failed),
        "complete answers": sum(answer.is_complete for answer in answers),
        "outputs equal to solo": equal_texts(answers, solo) if solo else None,
        "cut at a deadline": sum(answer.was_cut for answer in answers),
        "never answered": sum(answer.has_failed for answer in answers),
        **told_waits([wait for answer in answers for wait in answer.waits]),
        "Jain index": jain_index(list(counts.tenant_tokens.values())),
        "peak paused": counts.peak_paused,
        "peak KV pages": counts.peak_pages,
    }


def _difference(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before


def jain_index(shares: Sequence[float]) -> float | None:
    """1 when all have the same, 1/n when one has all."""
    if not shares:
        return None
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many per cent do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def equal_texts(answers: Sequence[Answer], solo: Sequence[Answer]) -> int:
    """How many answers have the text that they have when they run alone."""
    alone = {answer.entry.number: answer.text for answer in solo}
    return sum(answer.text == alone.get(answer.entry.number) for answer in answers)


def told_waits(waits: Sequence[EstimatedWait]) -> dict[str, float | None]:
    """How true the estimates were; nobody can be wrong by a share of no wait."""
    seconds = [abs(wait.likely - wait.waited) for wait in waits]
    shares = [error / wait.waited for error, wait in zip(seconds, waits, strict=True) if wait.waited > 0]
    inside = [wait.soonest <= wait.waited <= wait.latest for wait in waits]
    return {
        "wait estimates": len(waits) if waits else None,
        "likely wait, median error": statistics.median(shares) if shares else None,
        "likely wait, median error in seconds": statistics.median(seconds) if seconds else None,
        "waits from soonest to latest": statistics.fmean(inside) if inside else None,
    }


def _spread(name: str, values: Sequence[float]) -> dict[str, float | None]:
    return {
        f"{name}, mean": statistics.fmean(values),
        **{f"{name}, p{percent}": percentile(values, percent) for percent in (50, 95, 99)},
        f"{name}, max": max(values),
    }


def _num_far_over(normal: Sequence[Answer], floor: Sequence[Answer], far_seconds: float) -> int:
    at_floor = {answer.entry.number: answer.latency for answer in floor}
    return sum(answer.latency > at_floor[answer.entry.number] + far_seconds for answer in normal)
