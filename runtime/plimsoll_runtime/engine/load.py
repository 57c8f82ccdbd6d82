"""How busy an engine is, as one frozen snapshot that any thread may read.

In: requests and scheduler, read by the engine's thread. Out: `EngineLoad`. Requests are counted, not the sequences of
`n`; a request runs while one of its sequences has a slot, and is paused when it had one and none has one now.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from plimsoll_runtime.contract.endpoints import Route
from plimsoll_runtime.engine.host_kv import KVStore
from plimsoll_runtime.engine.scheduler import Scheduler
from plimsoll_runtime.engine.sequence import RequestProgress, Sequence

SMOOTHED_STEPS = 32
"""Speeds are averages that forget: a step counts for a third after so many more."""


@dataclass(frozen=True, slots=True)
class SequenceLoad:
    """One sequence in the house, for whoever estimates a wait: what it has written, and what it may still write."""

    state: Literal["waiting", "running", "paused"]
    route: Route
    tenant: str
    level: int
    output_tokens: int
    max_output_tokens: int


@dataclass(frozen=True, slots=True)
class LevelLoad:
    """One level of the schedule: the longest present wait in it, and the tokens sampled in it since the start."""

    oldest_wait_seconds: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Counts:
    """What happened since the start.

    Preemptions by kind: `pauses` keep their pages, `swaps` moved them to host memory, `recomputes` lost them.
    `demotions` and `repetition_stops` are what became of repetitions.
    """

    steps: int = 0
    pauses: int = 0
    swaps: int = 0
    recomputes: int = 0
    swapped_out_bytes: int = 0
    swapped_in_bytes: int = 0
    deadline_truncations: int = 0
    demotions: int = 0
    repetition_stops: int = 0


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Requests by state, the longest present wait, pages by state, and counts since the start.

    `tokens_per_second` is what the engine samples of late, all sequences together, and `seconds_per_step` how long a
    step takes: a running sequence gets one token in each. Both are 0 until they are known. `tenant_tokens` are the
    weighted tokens served to each tenant that is in the house now.
    """

    running: int
    waiting: int
    paused: int
    oldest_wait_seconds: float
    pages_free: int
    pages_used: int
    pages_cached: int
    counts: Counts = field(default_factory=Counts)
    tokens_per_second: float = 0.0
    seconds_per_step: float = 0.0
    sequences: tuple[SequenceLoad, ...] = ()
    levels: tuple[LevelLoad, ...] = ()
    tenant_tokens: tuple[tuple[str, float], ...] = ()


class Meter:
    """What the engine counts itself, and how fast it is of late."""

    def __init__(self) -> None:
        self.steps = 0
        self.deadline_truncations = 0
        self.demotions = 0
        self.repetition_stops = 0
        self.tokens_per_second = 0.0
        self.seconds_per_step = 0.0
        self._last_step_at: float | None = None

    def step_done(self, now: float, sampled_tokens: int, stays_busy: bool) -> None:
        """A step ended at `now`. Only steps that follow each other are timed: idle time is not slowness."""
        self.steps += 1
        if self._last_step_at is not None and now > self._last_step_at:
            seconds = now - self._last_step_at
            self.seconds_per_step = _smoothed(self.seconds_per_step, seconds)
            self.tokens_per_second = _smoothed(self.tokens_per_second, sampled_tokens / seconds)
        self._last_step_at = now if stays_busy else None


def _smoothed(old: float, new: float) -> float:
    return new if old == 0 else old + (new - old) / SMOOTHED_STEPS


def measure_load(
    requests: Iterable[RequestProgress], scheduler: Scheduler, host: KVStore, meter: Meter, now: float
) -> EngineLoad:
    """The load at time `now`."""
    present = list(requests)
    stopped = [progress for progress in present if not progress.is_running]
    num_paused = sum(progress.started for progress in stopped)
    residency = scheduler.residency
    return EngineLoad(
        running=len(present) - len(stopped),
        waiting=len(stopped) - num_paused,
        paused=num_paused,
        oldest_wait_seconds=now - min((progress.waiting_since for progress in stopped), default=now),
        pages_free=residency.allocator.num_free,
        pages_used=residency.allocator.num_used,
        pages_cached=residency.allocator.num_idle,
        counts=Counts(
            steps=meter.steps,
            pauses=scheduler.num_pauses,
            swaps=residency.num_swaps,
            recomputes=residency.num_recomputes,
            swapped_out_bytes=host.bytes_out,
            swapped_in_bytes=host.bytes_in,
            deadline_truncations=meter.deadline_truncations,
            demotions=meter.demotions,
            repetition_stops=meter.repetition_stops,
        ),
        tokens_per_second=meter.tokens_per_second,
        seconds_per_step=meter.seconds_per_step,
        sequences=tuple(_sequence_load(sequence) for progress in present for sequence in progress.sequences),
        levels=_levels(scheduler, now),
        tenant_tokens=tuple(scheduler.fairness.tenants()),
    )


def _sequence_load(sequence: Sequence) -> SequenceLoad:
    state = sequence.state
    if state == "waiting" and sequence.has_started:
        state = "paused"
    assert state != "finished", "sequences that have ended are not in the house"
    return SequenceLoad(
        state=state,
        route=sequence.request.route,
        tenant=sequence.request.tenant,
        level=sequence.level,
        output_tokens=sequence.output_tokens,
        max_output_tokens=sequence.prompt.budget.max_output_tokens,
    )


def _levels(scheduler: Scheduler, now: float) -> tuple[LevelLoad, ...]:
    tokens = scheduler.fairness.level_tokens
    since = [now] * len(tokens)
    for sequence in scheduler.waiting():
        since[sequence.level] = min(since[sequence.level], sequence.waiting_since)
    return tuple(LevelLoad(now - oldest, count) for oldest, count in zip(since, tokens, strict=True))
