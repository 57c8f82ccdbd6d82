"""How long a new request would wait for its first slot: at best, as likely as not, and at worst.

Owns the estimate. In: what is in the house (an engine's load), the curves of answer lengths, and how slots are shared.
Out: a `WaitEstimate`, or None while the engine's speed is unknown. It is pure: the same load gives the same estimate.

What stands before a newcomer are the sequences of the first level (of its own tenant, where tenants share): each until
it ends or leaves the level. They take turns on the slots that the first level is guaranteed, or on more where there are
not enough others to fill the rest. The lengths are drawn many times, and the waits that follow are the estimate. What
it leaves out (prefills, and requests whose prompt is being read) makes it optimistic, which is the right side: nothing
is refused that could be served.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from plimsoll_runtime.admission.answer_lengths import AnswerLengths, Floats, LengthCurve
from plimsoll_runtime.contract.endpoints import Route

NUM_DRAWS = 100


class SequenceInside(Protocol):
    """One sequence in the house (engine/load.py)."""

    @property
    def state(self) -> Literal["waiting", "running", "paused"]: ...
    @property
    def route(self) -> Route: ...
    @property
    def tenant(self) -> str: ...
    @property
    def level(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def max_output_tokens(self) -> int: ...


class Inside(Protocol):
    """The load of an engine (engine/load.py)."""

    @property
    def seconds_per_step(self) -> float: ...
    @property
    def sequences(self) -> Sequence[SequenceInside]: ...


@dataclass(frozen=True, slots=True)
class SlotRules:
    """How slots are shared, as far as a newcomer's wait depends on it.

    A sequence leaves the first level at `first_threshold` output tokens (None: never); `weights` are of all levels.
    """

    running_slots: int
    first_threshold: int | None = None
    weights: tuple[int, ...] = (1,)
    by_tenant: bool = False


@dataclass(frozen=True, slots=True)
class WaitEstimate:
    """Seconds until the first slot that one request in ten, in two, and nine in ten would not exceed; and until some
    request ends and leaves its place, as likely as not."""

    soonest: float
    likely: float
    latest: float
    place: float


def estimate_wait(
    load: Inside, lengths: AnswerLengths, rules: SlotRules, tenant: str, weight_of: Callable[[str], int]
) -> WaitEstimate | None:
    """The wait of a request of `tenant` that comes now."""
    if load.seconds_per_step <= 0:
        return None
    draws = _Draws(lengths)
    ahead = [sequence for sequence in load.sequences if _is_ahead(sequence, rules, tenant)]
    lanes = _lanes(load.sequences, len(ahead), rules, tenant, weight_of)
    waits = _waits(ahead, lanes, rules, draws) * load.seconds_per_step
    running = [draws.tokens_left(each, each.max_output_tokens) for each in load.sequences if each.state == "running"]
    place = float(np.median(np.min(running, axis=0))) * load.seconds_per_step if running else 0.0
    soonest, likely, latest = (float(wait) for wait in np.quantile(waits, (0.1, 0.5, 0.9)))
    return WaitEstimate(soonest, likely, latest, place)


class _Draws:
    """Lengths drawn from the curves; the same series of numbers for every estimate."""

    def __init__(self, lengths: AnswerLengths) -> None:
        self._lengths = lengths
        self._curves: dict[tuple[Route, str], LengthCurve] = {}
        self._random = np.random.default_rng(0)

    def tokens_left(self, sequence: SequenceInside, most: float) -> Floats:
        """Tokens [NUM_DRAWS] that a sequence still writes, up to `most` in all."""
        key = (sequence.route, sequence.tenant)
        if key not in self._curves:
            self._curves[key] = self._lengths.curve(*key)
        # Each draw from its own part of the curve, in an order of its own: chance is between sequences alone.
        parts = (self._random.permutation(NUM_DRAWS) + 0.5) / NUM_DRAWS
        lengths = self._curves[key].draw(sequence.output_tokens, most, parts)
        return np.maximum(lengths - sequence.output_tokens, 0.0)


def _is_ahead(sequence: SequenceInside, rules: SlotRules, tenant: str) -> bool:
    return sequence.level == 0 and (sequence.tenant == tenant or not rules.by_tenant)


def _lanes(
    sequences: Sequence[SequenceInside],
    num_ahead: int,
    rules: SlotRules,
    tenant: str,
    weight_of: Callable[[str], int],
) -> float:
    """Slots, in parts of one too, that those ahead and the newcomer have among themselves."""
    share = 1.0
    mine = sequences
    if rules.by_tenant:
        tenants = {sequence.tenant for sequence in sequences} | {tenant}
        share = weight_of(tenant) / sum(map(weight_of, tenants))
        mine = [sequence for sequence in sequences if sequence.tenant == tenant]
    levels = {sequence.level for sequence in mine} | {0}
    share *= rules.weights[0] / sum(rules.weights[level] for level in levels)
    num_others = len(sequences) - num_ahead
    return max(rules.running_slots * share, float(rules.running_slots - num_others))


def _waits(ahead: Sequence[SequenceInside], lanes: float, rules: SlotRules, draws: _Draws) -> npt.NDArray[np.float64]:
    """Steps [NUM_DRAWS] until a lane is free for the newcomer; who has a slot comes before who waits for one."""
    num_lanes = max(1, int(lanes))
    free_at = np.zeros((NUM_DRAWS, num_lanes))
    rows = np.arange(NUM_DRAWS)
    for sequence in sorted(ahead, key=lambda each: each.state == "waiting"):
        most = sequence.max_output_tokens
        if rules.first_threshold is not None:
            most = min(most, rules.first_threshold)
        first_free = free_at.argmin(axis=1)
        free_at[rows, first_free] += draws.tokens_left(sequence, most) * (num_lanes / lanes)
    return np.asarray(free_at.min(axis=1), dtype=np.float64)
