"""The bulk job itself: which line goes to which server, when it goes again, and when the whole job stops.

Owns the queue of lines and one worker per slot. In: requests without an answer, and servers. Out: answers, each handed
to `keep` exactly once. It knows no files and no terminal.

Each server gets two workers for every sequence that it computes at once, so that a slot that becomes free finds the
next request already waiting. A worker whose server is busy or gone puts its line back at the head and
waits; the others go on. Invariants: a line is in the queue, with one worker, or done; a job that no server has
answered for `give_up_seconds` ends; a refusal that every line would get ends the job at once.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plimsoll_runtime.bulk.batch_files import BatchRequest, RequestLine
from plimsoll_runtime.bulk.server import UNKNOWN_SLOTS, Answered, SendAgain, Server, ServerLimits

FIRST_ANSWERS = 16
"""When so many lines were refused for one reason before any was answered, the rest would fare no better."""

MAX_FAILURES_OF_A_LINE = 5
"""A line on which servers answered with errors of their own so often is done, and the last error is its answer."""


class JobStopped(Exception):
    """The job cannot go on; the text says why in one sentence."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a run needs. `read` gives a request's line, `keep` takes its answer, `again` hears of a line sent again."""

    read: Callable[[BatchRequest], RequestLine]
    keep: Callable[[BatchRequest, Answered], None]
    again: Callable[[SendAgain], None]
    give_up_seconds: float
    stops_early: bool


class Run:
    """One run over the requests."""

    def __init__(self, job: Job, requests: Sequence[BatchRequest]) -> None:
        self._job = job
        self._queue = deque(requests)
        self._left = len(requests)
        self._failures: Counter[str] = Counter()
        self._reasons: list[str] = []
        self._any_success = False
        self._last_answer = time.monotonic()
        self._changed = asyncio.Condition()

    async def over(self, servers: Sequence[tuple[Server, ServerLimits]]) -> None:
        """Until every request is done. Raises JobStopped, after which nothing is in flight."""
        workers = [
            asyncio.create_task(self._work(server)) for server, limits in servers for _ in range(num_workers(limits))
        ]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, server: Server) -> None:
        while True:
            request = await self._take()
            if request is None:
                return
            outcome = await server.send(self._job.read(request))
            if isinstance(outcome, Answered):
                await self._done(request, outcome)
            else:
                await self._put_back(request, outcome)

    async def _take(self) -> BatchRequest | None:
        """The next line; None when all are done. A queue that is empty may fill again: another worker may fail."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._queue or self._left == 0)
            return self._queue.popleft() if self._queue else None

    async def _done(self, request: BatchRequest, answer: Answered) -> None:
        self._last_answer = time.monotonic()
        self._stop_at_what_all_would_get(request, answer)
        self._job.keep(request, answer)
        async with self._changed:
            self._left -= 1
            self._changed.notify_all()

    async def _put_back(self, request: BatchRequest, outcome: SendAgain) -> None:
        self._job.again(outcome)
        silent_seconds = time.monotonic() - self._last_answer
        if silent_seconds > self._job.give_up_seconds:
            raise JobStopped(f"no server has answered for {silent_seconds:,.0f} s; the last word was: {outcome.reason}")
        if outcome.failure is not None and self._has_failed_too_often(request):
            await self._done(request, outcome.failure)
            return
        async with self._changed:
            self._queue.appendleft(request)
            self._changed.notify_all()
        await asyncio.sleep(outcome.wait_seconds)

    def _has_failed_too_often(self, request: BatchRequest) -> bool:
        self._failures[request.custom_id] += 1
        return self._failures[request.custom_id] >= MAX_FAILURES_OF_A_LINE

    def _stop_at_what_all_would_get(self, request: BatchRequest, answer: Answered) -> None:
        if answer.status == 200:
            self._any_success = True
        if answer.status == 200 or not self._job.stops_early:
            return
        message = str(answer.error.get("message", f"status {answer.status}"))
        if answer.same_for_all:
            raise JobStopped(f"line {request.line_number:,} ({request.custom_id}), and every line like it: {message}")
        self._reasons.append(str(answer.error.get("code", answer.status)))
        if not self._any_success and len(self._reasons) >= FIRST_ANSWERS and len(set(self._reasons)) == 1:
            raise JobStopped(f"the first {FIRST_ANSWERS} lines were all refused; the last one: {message}")


def num_workers(limits: ServerLimits) -> int:
    """Requests that a server gets at once."""
    slots = UNKNOWN_SLOTS if limits.running_slots is None else limits.running_slots
    return 2 * slots
