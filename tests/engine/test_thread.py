"""The engine's thread: it answers, it sleeps, and when it ends everyone hears of it."""

import queue
import threading
import time
from collections.abc import Iterator

import pytest

from doubles.admitted_requests import admitted
from doubles.engine_runs import SEVENS, TINY, VOCAB_SIZE, Clock
from doubles.scripted_model import Gate, ScriptedRunner
from plimsoll_runtime.engine.engine import Engine
from plimsoll_runtime.engine.settings import EngineSettings
from plimsoll_runtime.engine.thread import EngineStopped, EngineThread
from plimsoll_runtime.events import EngineEvent, Finished, Token

PATIENCE = 20.0


class Running:
    """A thread over a scripted engine; what it says lies in queues."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.gate.open.set()
        self.crash_at: int | None = None
        self.clock = Clock()
        self.events: queue.Queue[EngineEvent] = queue.Queue()
        self.crashes: queue.Queue[BaseException] = queue.Queue()
        self.runner = ScriptedRunner(SEVENS, VOCAB_SIZE, self.before_step)
        self.thread = EngineThread(
            Engine(self.runner, EngineSettings(**TINY), self.clock), self.deliver, self.crashes.put
        )

    def before_step(self, step: int) -> None:
        self.gate(step)
        if step == self.crash_at:
            raise MemoryError(f"step {step}")

    def deliver(self, events: list[EngineEvent]) -> None:
        for event in events:
            self.events.put(event)

    def until_finished(self, request_id: str) -> list[EngineEvent]:
        events: list[EngineEvent] = []
        while True:
            event = self.events.get(timeout=PATIENCE)
            events += [event] if event.request_id == request_id else []
            if isinstance(event, Finished) and event.request_id == request_id:
                return events


@pytest.fixture
def running() -> Iterator[Running]:
    made = Running()
    made.thread.start()
    yield made
    made.gate.open.set()
    made.thread.stop()
    assert not made.thread.is_alive()


def test_requests_from_many_threads_are_answered(running: Running) -> None:
    def ask(number: int) -> None:
        running.thread.submit(admitted(f"r{number}", [number], max_output_tokens=3))

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for client in clients:
        client.start()
    ended: set[str] = set()
    while len(ended) < 8:
        event = running.events.get(timeout=PATIENCE)
        ended |= {event.request_id} if isinstance(event, Finished) else set()
    for client in clients:
        client.join()


def test_it_wakes_up_again_after_having_slept(running: Running) -> None:
    for number in range(3):
        running.thread.submit(admitted(f"r{number}", [1], max_output_tokens=2))
        assert len([e for e in running.until_finished(f"r{number}") if isinstance(e, Token)]) == 2
    # B123: an idle engine is not a wedged one, however long it sleeps.
    running.clock.now += 30.0
    for _ in range(int(PATIENCE / 0.01)):
        if running.thread.seconds_since_last_step() == 0.0:
            break
        time.sleep(0.01)
    assert running.thread.seconds_since_last_step() == 0.0


def test_an_abort_takes_effect_within_two_steps(running: Running) -> None:
    """B36: the run went on to its limit, and the next request waited for it."""
    running.thread.submit(admitted("left", [1], max_output_tokens=60))
    running.events.get(timeout=PATIENCE)
    running.gate.open.clear()
    running.gate.entered.clear()
    assert running.gate.entered.wait(PATIENCE)
    steps = running.runner.num_steps
    running.thread.abort("left")
    running.thread.submit(admitted("next", [2], max_output_tokens=1))
    running.gate.open.set()
    running.until_finished("next")
    assert running.runner.num_steps <= steps + 2
    assert running.thread.load().running == 0


def test_a_crash_is_told_once_and_ends_everything(running: Running) -> None:
    """B123, B46: the engine was dead while health stayed 200, and streams hung until the client gave up."""
    running.crash_at = 3
    running.thread.submit(admitted("r", [1]))
    assert isinstance(running.crashes.get(timeout=PATIENCE), MemoryError)
    with pytest.raises(EngineStopped):
        running.thread.submit(admitted("next", [1]))
    running.thread.abort("r")
    running.thread.stop()
    assert running.crashes.empty()


def test_a_deliver_that_breaks_is_a_crash() -> None:
    running = Running()

    def broken(events: list[EngineEvent]) -> None:
        raise RuntimeError("the loop is closed")

    thread = EngineThread(Engine(running.runner, EngineSettings(**TINY), running.clock), broken, running.crashes.put)
    thread.start()
    thread.submit(admitted("r", [1]))
    assert str(running.crashes.get(timeout=PATIENCE)) == "the loop is closed"


def test_a_step_that_hangs_can_be_seen(running: Running) -> None:
    """B123: a wedged engine was never noticed, while a busy one was restarted."""
    running.gate.open.clear()
    running.thread.submit(admitted("r", [1], max_output_tokens=2))
    assert running.gate.entered.wait(PATIENCE)
    running.clock.now += 30.0
    assert (running.thread.is_alive(), running.thread.seconds_since_last_step()) == (True, 30.0)
    running.gate.open.set()
    running.until_finished("r")


def test_stop_refuses_what_comes_later(running: Running) -> None:
    running.thread.stop()
    with pytest.raises(EngineStopped):
        running.thread.submit(admitted("r", [1]))
    assert running.crashes.empty()


def test_a_thread_that_never_started_can_be_stopped() -> None:
    made = Running()
    assert not made.thread.is_alive()
    made.thread.stop()
