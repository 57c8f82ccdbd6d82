"""An engine with tiny limits on a scripted model, stepped by hand under a clock that stands still."""

from typing import Any

from doubles.scripted_model import Script, ScriptedRunner, write
from plimsoll_runtime.engine.engine import Engine
from plimsoll_runtime.engine.host_kv import KVStore
from plimsoll_runtime.engine.runner import Runner
from plimsoll_runtime.engine.settings import EngineSettings
from plimsoll_runtime.events import EngineEvent, Finished, Token

VOCAB_SIZE = 32
SEVENS = write([7])
TINY: dict[str, Any] = {
    "running_slots": 2,
    "context_length": 64,
    "num_pages": 64,
    "num_tokens": VOCAB_SIZE,
    "detects_runaways": True,
    "page_size": 2,
    "step_tokens": 16,
    "headroom_tokens": 2,
}


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class EngineRun:
    """One engine, and everything that it said."""

    def __init__(
        self, script: Script = SEVENS, runner: Runner | None = None, host: KVStore | None = None, **settings: Any
    ) -> None:
        self.clock = Clock()
        self.scripted = ScriptedRunner(script, VOCAB_SIZE)
        settings = {**TINY, **settings}
        runner = self.scripted if runner is None else runner
        self.engine = Engine(runner, EngineSettings(**settings), self.clock, host)
        self.events: list[EngineEvent] = []

    @property
    def steps(self) -> list[list[tuple[str, int, int, int]]]:
        """What each step computed, where the model is scripted."""
        return list(self.scripted.steps)

    def step(self, count: int = 1) -> list[EngineEvent]:
        """Step `count` times, check every page each time, and return what was said."""
        said: list[EngineEvent] = []
        for _ in range(count):
            said += self.engine.step()
            self.engine.check_integrity()
        self.events += said
        return said

    def finish(self, most_steps: int = 1000) -> list[EngineEvent]:
        """Step until nothing is left to do; more than `most_steps` is a failure, not a hang."""
        for _ in range(most_steps):
            if not self.engine.has_work():
                return self.events
            self.step()
        raise AssertionError(f"still busy after {most_steps} steps: {self.engine.load()}")

    def tokens(self, request_id: str, choice: int = 0) -> list[int]:
        """Ids sampled for one choice."""
        events = (event for event in self.events if isinstance(event, Token))
        return [event.token_id for event in events if (event.request_id, event.choice) == (request_id, choice)]

    def ends(self, request_id: str) -> list[tuple[int, str, str | None]]:
        """(choice, reason, type of the detail) of every `Finished` of a request, in order."""
        events = (event for event in self.events if isinstance(event, Finished) and event.request_id == request_id)
        return [(e.choice, e.reason, None if e.detail is None else e.detail.type) for e in events]
