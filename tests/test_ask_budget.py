"""`plimsoll budget` shows what a server decided, and its exit code tells a script."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from plimsoll_runtime.ask_budget import main

Ask = Callable[..., int]

ADMITTED = {
    "admitted": True,
    "prompt_tokens": 31,
    "requested_output_tokens": 8192,
    "max_output_tokens": 2017,
    "limited_by": "context",
    "context_length": 2048,
}
REFUSED = {
    "admitted": False,
    "status": 400,
    "error": {
        "error": {"message": "too much", "prompt_tokens": 31, "context_length": 2048, "max_output_limit": None},
    },
}


class Server(HTTPServer):
    """Answers every POST with the same thing, and remembers what it was sent."""

    answer: tuple[int, bytes] = (200, b"{}")
    seen: tuple[str, dict[str, str], Any] = ("", {}, None)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen = (self.path, {name.lower(): value for name, value in self.headers.items()}, json.loads(body))
        status, content = self.server.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the name is the base class's
        """Says nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def ask(server: Server, tmp_path: Path) -> Ask:
    file = tmp_path / "request.json"
    file.write_text('{"model": "m", "max_tokens": 8192}', encoding="utf-8")

    def run(answer: Any, *arguments: str, status: int = 200) -> int:
        server.answer = (status, answer if isinstance(answer, bytes) else json.dumps(answer).encode())
        return main(["--url", f"http://127.0.0.1:{server.server_port}", *arguments, str(file)])

    return run


def test_the_request_is_sent_as_the_route_would_get_it(ask: Ask, server: Server, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# one of\n\nfirst\nsecond\n", encoding="utf-8")
    arguments = ("--route", "/v1/messages", "--over-budget", "refuse", "--api-key-file", str(keys))
    assert ask(ADMITTED, *arguments) == 0
    path, headers, body = server.seen
    assert path == "/v1/budget"
    assert body == {"route": "/v1/messages", "request": {"model": "m", "max_tokens": 8192}}
    assert headers["x-plimsoll-over-budget"] == "refuse"
    assert headers["authorization"] == "Bearer first"


@pytest.mark.parametrize(
    ("limited_by", "granted", "reason"),
    [
        ("request", 8192, "request: the request asked for 8,192, and gets it"),
        ("default", 512, "default: the request named no limit, and the server's default is 512"),
        ("limit", 1024, "limit: the server's hard limit is 1,024"),
        ("context", 2017, "context: context_length 2,048 - prompt_tokens 31 leaves room for 2,017"),
    ],
)
def test_a_grant_says_why(
    ask: Ask, capsys: pytest.CaptureFixture[str], limited_by: str, granted: int, reason: str
) -> None:
    assert ask({**ADMITTED, "limited_by": limited_by, "max_output_tokens": granted}) == 0
    assert reason in capsys.readouterr().out


def test_a_refusal_is_exit_code_3_and_carries_the_numbers(ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(REFUSED) == 3
    output = capsys.readouterr().out
    assert "refused with status 400" in output
    assert "too much" in output
    assert "context length           2,048" in output


def test_json_is_the_answer_as_it_is(ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(REFUSED, "--json") == 3
    assert json.loads(capsys.readouterr().out) == REFUSED


@pytest.mark.parametrize(
    ("status", "answer", "expected"),
    [
        pytest.param(401, {"error": {"message": "no key"}}, "the server answered 401: no key", id="error"),
        pytest.param(502, b"<html>", "the server answered 502: <html>", id="not-json"),
        pytest.param(200, b"<html>", "not as a Plimsoll server does", id="other-server"),
        pytest.param(200, [], "not as a Plimsoll server does", id="other-json"),
    ],
)
def test_an_answer_without_a_decision_is_exit_code_1(
    ask: Ask, capsys: pytest.CaptureFixture[str], status: int, answer: Any, expected: str
) -> None:
    assert ask(answer, status=status) == 1
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "url", "expected"),
    [
        pytest.param("{", "http://127.0.0.1:1", "is not JSON", id="broken-file"),
        pytest.param(None, "http://127.0.0.1:1", "cannot read", id="no-file"),
        pytest.param("{}", "http://127.0.0.1:1", "no server answers at http://127.0.0.1:1", id="nobody-there"),
        pytest.param("{}", "file:///etc", "is not of the form http://host:port", id="scheme"),
        pytest.param("{}", "http://", "is not of the form http://host:port", id="no-host"),
    ],
)
def test_what_cannot_be_asked_is_exit_code_1_and_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, url: str, expected: str
) -> None:
    file = tmp_path / "request.json"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    assert main(["--url", url, str(file)]) == 1
    message = capsys.readouterr().err
    assert expected in message
    assert message.count("\n") == 1
