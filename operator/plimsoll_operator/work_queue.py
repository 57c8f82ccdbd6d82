"""Which servers are due, and when: a queue of keys that many workers empty.

Owns triggers. In: keys, from watches and from a clock. Out: calls of one function, in threads. It knows nothing of
what is done. Invariants: one key is worked on by one thread at a time; a key that is added while it is worked on is
worked on once more; any number of additions in between is one; a failed key comes back after a delay that grows to a
bound, and at once when it is added again.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final

Key = tuple[str, str]
"""(namespace, name)."""
Work = Callable[[Key], float | None]
"""Returns after how many seconds to look again, or None; an exception means after a back-off."""

FIRST_DELAY: Final = 1.0
MOST_DELAY: Final = 60.0
PAUSE: Final = 0.5
"""Between two calls for one key, so that a pod that flaps costs a bounded number of requests."""
LOGGER: Final = logging.getLogger("plimsoll.queue")


@dataclass(slots=True)
class _State:
    """Of one key. `since`: when it became due, for those who look for a stall."""

    since: float | None = None
    working: bool = False
    again: bool = False
    failures: int = 0
    timer: asyncio.TimerHandle | None = None
    last_end: float = float("-inf")


@dataclass(slots=True)
class WorkQueue:
    """Used from one event loop alone."""

    work: Work
    executor: Executor
    _states: dict[Key, _State] = field(default_factory=dict)
    _due: asyncio.Queue[Key] = field(default_factory=asyncio.Queue)

    def add(self, key: Key) -> None:
        """The key is due now, whatever it waits for."""
        state = self._states.setdefault(key, _State())
        if state.working:
            state.again = True
        elif state.since is None:
            self._wait(key, state, max(0.0, state.last_end + PAUSE - time.monotonic()))

    def add_later(self, key: Key, seconds: float) -> None:
        """The key is due after some time, unless it is due before."""
        state = self._states.setdefault(key, _State())
        if not state.working and state.since is None and state.timer is None:
            self._wait(key, state, seconds)

    async def run_worker(self) -> None:
        """Forever; start several."""
        while True:
            key = await self._due.get()
            state = self._states[key]
            state.working = True
            pause = await self._call(key, state)
            state.working, state.since, state.last_end = False, None, time.monotonic()
            if state.again:
                state.again = False
                self.add(key)
            elif pause is not None:
                self._wait(key, state, pause)
            elif state.timer is None:
                self._states.pop(key, None)

    @property
    def length(self) -> int:
        """Keys that are due and not worked on."""
        return self._due.qsize()

    def oldest_seconds(self) -> float:
        """For how long the key that has waited longest, or takes longest, has been due."""
        since = [state.since for state in list(self._states.values()) if state.since is not None]
        return time.monotonic() - min(since) if since else 0.0

    async def _call(self, key: Key, state: _State) -> float | None:
        try:
            pause = await asyncio.get_running_loop().run_in_executor(self.executor, self.work, key)
        except Exception as error:
            pause = min(FIRST_DELAY * 2.0**state.failures, MOST_DELAY)
            state.failures += 1
            LOGGER.warning("%s/%s: %s; again in %g s", *key, error, pause, exc_info=_is_unexpected(error))
            return pause
        state.failures = 0
        return pause

    def _wait(self, key: Key, state: _State, seconds: float) -> None:
        if state.timer is not None:
            state.timer.cancel()
        if seconds <= 0:
            self._now(key, state)
        else:
            state.timer = asyncio.get_running_loop().call_later(seconds, self._now, key, state)

    def _now(self, key: Key, state: _State) -> None:
        state.timer = None
        if state.since is None:
            state.since = time.monotonic()
            self._due.put_nowait(key)


def _is_unexpected(error: Exception) -> bool:
    """What the API server or the network says is a sentence; anything else needs its trace."""
    return not hasattr(error, "status")
