"""A whole process: loading, ready, draining, stopping, dying; and what its clients see of each."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from doubles.server import MODEL, wait_until
from plimsoll_runtime.contract import endpoints
from routes.four_routes import ASK

PROGRAM = Path(__file__).parent / "doubles" / "scripted_process.py"
LONG = {"context_length": 8192, "step_seconds": 0.01, "running_slots": 1}
UNAVAILABLE = {endpoints.MESSAGES: (529, "overloaded_error")}


class Process:
    """A server process and its address."""

    def __init__(self, options: dict[str, Any]) -> None:
        command = [sys.executable, str(PROGRAM), json.dumps(options)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.client = httpx.Client(base_url=self.url, timeout=30, verify=False)

    def status(self, path: str) -> int:
        return self.client.get(path).status_code

    def ask(self, route: str, limit: int = 2, *, stream: bool = False) -> httpx.Response:
        ask = ASK[route]
        body = {"model": MODEL, "ignore_eos": True, "stream": stream, ask.limit_field: limit, **ask.body("hello")}
        return self.client.post(route, json=body)

    def in_background(self, route: str, limit: int, *, stream: bool = False) -> "Background":
        return Background(lambda: self.ask(route, limit, stream=stream))

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def exit(self) -> tuple[int, str]:
        """Exit code and standard error."""
        _, error = self.process.communicate(timeout=60)
        return self.process.returncode, error

    def running(self) -> int:
        return int(self.client.get(endpoints.BUDGET).json()["load"]["running"])


class Background:
    """One request in a thread; `answer` waits for it."""

    def __init__(self, ask: Any) -> None:
        self._answers: list[httpx.Response] = []
        self._thread = threading.Thread(target=lambda: self._answers.append(ask()))
        self._thread.start()

    def answer(self) -> httpx.Response:
        self._thread.join(60)
        return self._answers[0]


@contextlib.contextmanager
def server(**options: Any) -> Iterator[Process]:
    process = Process(options)
    try:
        yield process
    finally:
        process.client.close()
        if process.process.poll() is None:
            process.process.kill()
        process.process.communicate()


def test_it_is_live_at_once_and_ready_only_after_the_first_token() -> None:
    """B122: a server reported ready while it loaded, and requests failed."""
    with server(load_seconds=1.0, context_length=64) as process:
        assert process.status(endpoints.LIVEZ) == 200
        assert process.status(endpoints.READYZ) == 503
        assert process.status(endpoints.HEALTH) == 503
        for route in endpoints.GENERATION_ROUTES:
            answer = process.ask(route)
            status, kind = UNAVAILABLE.get(route, (503, "server_error"))
            assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)
            assert int(answer.headers["retry-after"]) >= 1
        wait_until(lambda: process.status(endpoints.READYZ) == 200)
        assert process.ask(endpoints.CHAT_COMPLETIONS).status_code == 200
        process.terminate()
        assert process.exit()[0] == 0


def test_a_failed_load_is_one_sentence_and_exit_code_1() -> None:
    with server(load_seconds=0.2, fails_to_load=True, context_length=64) as process:
        code, error = process.exit()
        assert code == 1
        assert "the model cannot be loaded: the script says so" in error
        assert "Traceback" not in error


def test_sigterm_while_loading_ends_at_once() -> None:
    """What happened before: the process stayed until its model was read, and was killed at the end of its grace."""
    with server(load_seconds=300, context_length=64) as process:
        wait_until(lambda: process.status(endpoints.LIVEZ) == 200)
        process.terminate()
        assert process.exit()[0] == 0


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_sigterm_lets_what_runs_finish_and_refuses_the_rest(stream: bool) -> None:
    """B38: SIGTERM cut running streams; clients saw a dropped socket without an error."""
    with server(**LONG) as process:
        wait_until(lambda: process.status(endpoints.READYZ) == 200)
        running = process.in_background(endpoints.CHAT_COMPLETIONS, 200, stream=stream)
        wait_until(lambda: process.running() == 1)
        waiting = process.in_background(endpoints.MESSAGES, 2)
        wait_until(lambda: process.client.get(endpoints.BUDGET).json()["load"]["waiting"] == 1)
        process.terminate()
        wait_until(lambda: process.status(endpoints.READYZ) == 503)
        assert process.status(endpoints.LIVEZ) == 200
        assert waiting.answer().status_code == 529
        for route in endpoints.GENERATION_ROUTES:
            assert process.ask(route).status_code == UNAVAILABLE.get(route, (503,))[0]
        answer = running.answer()
        assert answer.status_code == 200
        assert '"length"' in answer.text
        assert process.exit()[0] == 0


LAST_WORDS = {
    endpoints.CHAT_COMPLETIONS: '"code": "unavailable"',
    endpoints.COMPLETIONS: '"code": "unavailable"',
    endpoints.MESSAGES: "event: error",
    endpoints.RESPONSES: "event: response.failed",
}


@pytest.mark.parametrize("route", endpoints.GENERATION_ROUTES)
def test_a_stream_that_outlives_the_grace_ends_with_an_error_event(route: str) -> None:
    with server(**LONG, drain_seconds=0.3) as process:
        wait_until(lambda: process.status(endpoints.READYZ) == 200)
        running = process.in_background(route, 8000, stream=True)
        wait_until(lambda: process.running() == 1)
        process.terminate()
        text = running.answer().text
        assert LAST_WORDS[route] in text.replace('":"', '": "')
        assert process.exit()[0] == 0


@pytest.mark.parametrize("route", endpoints.GENERATION_ROUTES)
def test_a_dead_engine_tells_its_clients_and_ends_the_process(route: str) -> None:
    """B44, B46, B123: the engine died, health stayed 200, and clients hung for ever."""
    with server(**LONG, crash_at_step=30) as process:
        wait_until(lambda: process.status(endpoints.READYZ) == 200)
        answer = process.ask(route, 8000, stream=True)
        assert answer.status_code == 200
        assert '"error"' in answer.text
        code, error = process.exit()
        assert code == 1
        assert "the engine stopped" in error


def test_a_plain_answer_of_a_dead_engine_is_500() -> None:
    with server(**LONG, crash_at_step=30) as process:
        wait_until(lambda: process.status(endpoints.READYZ) == 200)
        answer = process.ask(endpoints.MESSAGES, 8000)
        assert (answer.status_code, answer.json()["error"]["type"]) == (500, "api_error")
        assert process.exit()[0] == 1


def test_a_second_signal_cuts_the_grace_short() -> None:
    with server(**LONG) as process:
        wait_until(lambda: process.status(endpoints.READYZ) == 200)
        running = process.in_background(endpoints.CHAT_COMPLETIONS, 8000)
        wait_until(lambda: process.running() == 1)
        process.terminate()
        wait_until(lambda: process.status(endpoints.READYZ) == 503)
        process.terminate()
        assert running.answer().status_code == 503
        assert process.exit()[0] == 0
