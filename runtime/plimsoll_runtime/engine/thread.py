"""The one thread that owns an engine: calls come in through an inbox, events go out after each step.

Owns the hand-over between threads. In: submit and abort from any thread. Out: `deliver` and `on_crash`, called on the
engine's thread. It knows no HTTP. Invariants: nothing but this thread touches the engine once it runs; an exception in
a step (or in `deliver`) ends the thread after `on_crash` was called once, and every later submit is refused, so nobody
waits for an engine that is gone.

The thread sleeps only while the engine has no work. While it has some it steps, and every step looks at the deadlines,
so no deadline needs a timer of its own.
"""

import threading
from collections import deque
from collections.abc import Callable

from plimsoll_runtime.admitted import AdmittedRequest
from plimsoll_runtime.engine.engine import Engine
from plimsoll_runtime.engine.load import EngineLoad
from plimsoll_runtime.events import EngineEvent, Token

LOAD_SECONDS = 0.1
"""How old the counts of tokens may be while nothing else changes."""


class EngineStopped(Exception):
    """The engine's thread has ended: nothing more is computed."""


class EngineThread:
    """Runs `engine` until `stop` or a crash. `deliver` must not block: steps wait for it."""

    def __init__(
        self, engine: Engine, deliver: Callable[[list[EngineEvent]], None], on_crash: Callable[[BaseException], None]
    ) -> None:
        self._engine = engine
        self._deliver = deliver
        self._on_crash = on_crash
        self._changed = threading.Condition()
        self._inbox: deque[Callable[[], None]] = deque()
        self._stopping = False
        self._ended = False
        self._busy_since: float | None = None
        self._load = engine.load()
        self._load_at = engine.clock()
        self._has_called = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Begin to step. Once."""
        self._thread.start()

    def submit(self, request: AdmittedRequest) -> None:
        """Hand over a request. Raises EngineStopped when nothing would ever answer it."""
        with self._changed:
            if self._stopping or self._ended:
                raise EngineStopped("the engine has stopped: no request can be computed")
            self._put(lambda: self._engine.submit(request))

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """Hand over an abort: done before the next step. Harmless after the end."""
        with self._changed:
            self._put(lambda: self._engine.abort(request_id, choice))

    def load(self) -> EngineLoad:
        """The load after the last step that changed more than tokens, at most LOAD_SECONDS old while steps go on: an
        immutable snapshot, replaced as a whole."""
        return self._load

    def seconds_since_last_step(self) -> float:
        """How long the present step has taken, for a watchdog: 0 while there is nothing to do."""
        busy_since = self._busy_since
        return 0.0 if busy_since is None else max(0.0, self._engine.clock() - busy_since)

    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive() and not self._ended

    def stop(self) -> None:
        """End the thread after the present step; requests that still run hear nothing more. Waits for the end."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _put(self, call: Callable[[], None]) -> None:
        self._inbox.append(call)
        if self._busy_since is None:
            self._busy_since = self._engine.clock()
        self._changed.notify()

    def _run(self) -> None:
        try:
            while self._take_calls():
                events = self._engine.step()
                self._look_at_load(events)
                if events:
                    self._deliver(events)
        except BaseException as crash:
            # Whatever it is, someone waits for the engine and must hear of it.
            self._end()
            self._on_crash(crash)
        else:
            self._end()

    def _look_at_load(self, events: list[EngineEvent]) -> None:
        """The snapshot costs as much as the schedule of a step, so a step that only wrote tokens does without."""
        now = self._engine.clock()
        only_tokens = all(isinstance(event, Token) for event in events)
        speed_is_news = self._load.seconds_per_step == 0
        if self._has_called or not only_tokens or speed_is_news or now - self._load_at >= LOAD_SECONDS:
            self._load, self._load_at, self._has_called = self._engine.load(), now, False

    def _take_calls(self) -> bool:
        """Sleep until there is work, then do what the inbox says. False when it is time to end."""
        with self._changed:
            while not (self._inbox or self._stopping or self._engine.has_work()):
                self._busy_since = None
                self._changed.wait()
            calls, self._inbox = self._inbox, deque()
            self._busy_since = self._engine.clock()
            if self._stopping:
                return False
        self._has_called = self._has_called or bool(calls)
        for call in calls:
            call()
        return True

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._busy_since = None
