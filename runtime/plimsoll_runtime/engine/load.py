"""How busy an engine is, as one frozen snapshot that any thread may read.

In: requests and scheduler, read by the engine's thread. Out: `EngineLoad`. Requests are counted, not the sequences of
`n`; a request runs while one of its sequences has a slot, and is paused when it had one and none has one now.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from plimsoll_runtime.contract.endpoints import Route
from plimsoll_runtime.engine.scheduler import Scheduler
from plimsoll_runtime.engine.sequence import RequestProgress


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


def measure_load(requests: Iterable[RequestProgress], scheduler: Scheduler, now: float, num_steps: int) -> EngineLoad:
    """The load at time `now`. Nothing pauses a sequence, so `paused` is 0."""
    running = 0
    waiting_since: list[float] = []
    for progress in requests:
        if any(sequence.state == "running" for sequence in progress.sequences):
            running += 1
        else:
            waiting_since.append(progress.arrival)
    return EngineLoad(
        running=running,
        waiting=len(waiting_since),
        paused=0,
        oldest_wait_seconds=now - min(waiting_since, default=now),
        pages_free=scheduler.allocator.num_free,
        pages_used=scheduler.allocator.num_used,
        pages_cached=scheduler.allocator.num_idle,
        counts=Counts(steps=num_steps, recomputes=scheduler.preemptions),
    )
