"""What makes a server due: a watch, a clock, a replica that says something else than before.

Owns the loops around one `Reconciler`. In: keys from `handlers`, and times. Out: reconciles, and for `/healthz` a
sentence when nothing moves. Invariants: whatever a watch misses is made good by the next resync; a resync spreads its
servers over its interval; the loops end only with the process.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from plimsoll_operator.cluster import SERVER, ApiFault, Json
from plimsoll_operator.operator_metrics import OperatorMetrics
from plimsoll_operator.reconcile import Outcome, Reconciler
from plimsoll_operator.watch_check import WatchCheck
from plimsoll_operator.work_queue import Key, WorkQueue

WORKERS: Final = 8
RESYNC_SECONDS: Final = 60.0
POLL_SECONDS: Final = 25.0
"""Often enough that readings cover the window in which refusals are counted."""
BLOCKED_SECONDS: Final = 10.0
BEAT_SECONDS: Final = 1.0
STUCK_LOOP: Final = 30.0
STUCK_RESYNC: Final = 240.0
STUCK_WORK: Final = 300.0
STUCK_WATCH: Final = 180.0
LOGGER: Final = logging.getLogger("plimsoll.operator")
Answer = TypeVar("Answer")


@dataclass(slots=True)
class Triggers:
    """Lives in one event loop; `fault` may be asked from any thread."""

    reconciler: Reconciler
    metrics: OperatorMetrics
    namespaces: Sequence[str] = ()
    resync_seconds: float = RESYNC_SECONDS
    poll_seconds: float = POLL_SECONDS
    watch: WatchCheck = field(default_factory=WatchCheck)
    queue: WorkQueue = field(init=False)
    _workers: ThreadPoolExecutor = field(init=False)
    _beat: float = field(default_factory=time.monotonic)
    _resynced: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._workers = ThreadPoolExecutor(WORKERS + 2, thread_name_prefix="reconcile")
        self.queue = WorkQueue(self._reconcile, self._workers)
        self.metrics.observe("queue_length", "Servers that are due", lambda: self.queue.length)
        self.metrics.observe("oldest_due_seconds", "How long the oldest one is due", self.queue.oldest_seconds)
        lag = "How long the watch has not told of something that was listed"
        self.metrics.observe("watch_lag_seconds", lag, lambda: self.watch.lag_seconds(time.monotonic()))

    async def run(self) -> None:
        """Forever."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(WORKERS):
                tasks.create_task(self.queue.run_worker())
            tasks.create_task(self._beat_forever())
            tasks.create_task(self._resync_forever())
            tasks.create_task(self._poll_forever())

    def fault(self) -> str | None:
        """Why this process should be restarted, or None."""
        now = time.monotonic()
        if now - self._beat > STUCK_LOOP:
            return f"the event loop has not run for {now - self._beat:.0f} s"
        if now - self._resynced > STUCK_RESYNC + self.resync_seconds:
            return f"no listing of servers has succeeded for {now - self._resynced:.0f} s"
        if self.queue.oldest_seconds() > STUCK_WORK:
            return f"a server has been due for {self.queue.oldest_seconds():.0f} s"
        lag = self.watch.lag_seconds(now)
        return f"the watch has not told of a change for {lag:.0f} s" if lag > STUCK_WATCH else None

    def close(self) -> None:
        self._workers.shutdown(wait=True, cancel_futures=True)

    def _reconcile(self, key: Key) -> float | None:
        """In a worker's thread."""
        began = time.monotonic()
        outcome = "failed"
        try:
            outcome = self.reconciler.reconcile(*key)
        finally:
            self.metrics.reconciles.labels(outcome).inc()
            self.metrics.seconds.observe(time.monotonic() - began)
        return BLOCKED_SECONDS if outcome == Outcome.BLOCKED else None

    async def _beat_forever(self) -> None:
        while True:
            self._beat = time.monotonic()
            await asyncio.sleep(BEAT_SECONDS)

    async def _resync_forever(self) -> None:
        while True:
            try:
                listed = await self._in_thread(self._list)
                self._resynced = time.monotonic()
                self._spread(listed)
            except ApiFault as fault:
                LOGGER.warning("the servers could not be listed: %s", fault)
            await asyncio.sleep(self.resync_seconds)

    def _list(self) -> list[Json]:
        scopes: Sequence[str | None] = self.namespaces or (None,)
        return [each for scope in scopes for each in self.reconciler.cluster.list_all(SERVER, scope)]

    def _spread(self, listed: Sequence[Json]) -> None:
        versions = {key_of(each): str(each["metadata"]["resourceVersion"]) for each in listed}
        self.metrics.servers.set(len(versions))
        self.watch.compare(versions, time.monotonic())
        for number, key in enumerate(sorted(versions)):
            self.queue.add_later(key, self.resync_seconds * number / len(versions))

    async def _poll_forever(self) -> None:
        """The pods that are known; a server whose pods say something new is due."""
        while True:
            await asyncio.sleep(self.poll_seconds)
            for key in self.reconciler.readings.servers():
                if await self._in_thread(self.reconciler.readings.poll, key):
                    self.queue.add(key)

    async def _in_thread(self, function: Callable[..., Answer], *arguments: Any) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._workers, function, *arguments)


def key_of(document: Json) -> Key:
    return document["metadata"]["namespace"], document["metadata"]["name"]
