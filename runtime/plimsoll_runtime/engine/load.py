"""How busy an engine is, as one frozen snapshot that any thread may read.

In: requests and scheduler, read by the engine's thread. Out: `EngineLoad`. Requests are counted, not the sequences of
`n`; a request runs while one of its sequences has a slot.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from plimsoll_runtime.engine.scheduler import Scheduler
from plimsoll_runtime.engine.sequence import RequestProgress


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Requests by state, the longest present wait, pages by state, and counts since the start."""

    running: int
    waiting: int
    paused: int
    oldest_wait_seconds: float
    pages_free: int
    pages_used: int
    pages_cached: int
    num_steps: int
    preemptions: int


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
        num_steps=num_steps,
        preemptions=scheduler.preemptions,
    )
