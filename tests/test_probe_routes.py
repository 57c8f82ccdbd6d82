"""`plimsoll probe-routes`: one answer from our server, and a finger on the route of a server that has several."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from doubles.server import scripted_server
from plimsoll_runtime.contract import endpoints
from plimsoll_runtime.probe_routes import BODIES, main


def test_every_generation_route_is_probed() -> None:
    assert set(BODIES) == set(endpoints.GENERATION_ROUTES)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"context_length": 64}, "grants the rest of 64"),
        ({"context_length": 64, "max_output_limit": 24}, "grants 24, limited by limit"),
    ],
)
def test_our_server_gives_one_answer(limits: dict[str, Any], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server(**limits) as server:
        assert main([server.url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if expected in line and "gives 400" in line]) == len(endpoints.GENERATION_ROUTES)


class _OneRouteForgot(BaseHTTPRequestHandler):
    """The first report's server: one route looks at the setting, the others use a constant."""

    def do_GET(self) -> None:
        answers = {endpoints.BUDGET: {"context_length": 64}, endpoints.MODELS: {"data": [{"id": "m"}]}}
        self._json(200, answers[self.path])

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        limit = 24 if self.path == endpoints.CHAT_COMPLETIONS else 32
        if self.headers[endpoints.HEADER_OVER_BUDGET] == "clamp":
            self._json(200, {}, limit)
        else:
            numbers = {"requested_output_tokens": 64, "max_output_limit": limit, "context_length": 64}
            self._json(400, {"error": numbers})

    def _json(self, status: int, content: object, granted: int = 0) -> None:
        self.send_response(status)
        if granted:
            for name, value in (("max-output", granted), ("prompt", 5)):
                self.send_header(f"x-plimsoll-{name}-tokens", str(value))
            self.send_header(endpoints.HEADER_LIMITED_BY, "limit")
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Nothing on standard error."""


@contextmanager
def _serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_route_that_answers_otherwise_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with _serving(_OneRouteForgot) as url:
        assert main([url]) == 1
    printed = capsys.readouterr()
    assert "the routes differ" in printed.err
    rows = {line.split()[0]: line for line in printed.out.splitlines()}
    assert "max_output_limit 24" in rows[endpoints.CHAT_COMPLETIONS]
    assert "grants 32, limited by limit" in rows[endpoints.MESSAGES]


def test_a_server_with_keys_is_asked_with_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# a comment, which was sent as the key\nsk-probe\n")
    with scripted_server(context_length=64, api_key_file=str(keys)) as server:
        assert main([server.url]) == 1
        assert "--api-key-file" in capsys.readouterr().err
        assert main([server.url, "--api-key-file", str(keys)]) == 0


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "127.0.0.1:8000"])
def test_nobody_there_is_one_sentence(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([url]) == 1
    assert capsys.readouterr().err.count("\n") == 1
