"""Heads of requests that are slow, endless or ambiguous: what anybody can send before a key is asked for."""

import socket
import threading
from collections.abc import Iterator

import pytest

from doubles.server import ScriptedServer, scripted_server
from plimsoll_runtime import connection
from plimsoll_runtime.contract import endpoints
from routes.four_routes import COMPLETIONS
from routes.raw_http import all_of, begun_post, connected_to


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as server:
        yield server


def test_a_slow_head_ends_the_connection(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """B136: a connection that never sent a whole head was held for ever, before anybody had shown a key."""
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.05)
    for begun in (b"", b"GET /livez HTTP/1.1\r\nHost: x\r\n"):
        with connected_to(server) as connected:
            connected.sendall(begun)
            assert connected.recv(100) == b""


def test_an_endless_head_ends_the_connection(server: ScriptedServer) -> None:
    """B136: a header of 100 MB was held in memory, before anybody had shown a key."""
    for piece in (b"x" * 4096, b"x: y\r\n" * 1000):
        with connected_to(server) as connected:
            connected.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nx: ")
            with pytest.raises(ConnectionError):  # noqa: PT012
                for _ in range(2000):
                    connected.sendall(piece)


def test_many_headers_are_fine(server: ScriptedServer) -> None:
    """B136: 200 lines are unusual, and small."""
    headers = {f"x-{number}": "y" * 100 for number in range(200)}
    assert server.client.get(endpoints.LIVEZ, headers=headers).status_code == 200


def test_a_kept_connection_may_rest(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound on heads must not end a connection while an answer is computed, nor between two requests."""
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.05)
    get = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    with connected_to(server) as connected:
        connected.sendall(get)
        assert b"200 OK" in _one_answer(connected)
        rested = threading.Event()
        server.loop.call_soon_threadsafe(server.loop.call_later, 0.15, rested.set)
        rested.wait(5)
        connected.sendall(get)
        assert b"200 OK" in _one_answer(connected)


SMUGGLED: dict[str, str] = {
    "two-lengths": "content-length: 5\r\ncontent-length: 6",
    "length-and-chunks": "content-length: 5\r\ntransfer-encoding: chunked",
    "signed-length": "content-length: +5",
    "odd-length": "content-length: \xb2",
    "negative-length": "content-length: -5",
    "unknown-coding": "transfer-encoding: xchunked",
    "space-in-name": "content-length : 5",
}


@pytest.mark.parametrize("headers", SMUGGLED.values(), ids=SMUGGLED)
def test_a_head_with_two_meanings_ends_the_connection(server: ScriptedServer, headers: str) -> None:
    with begun_post(server, COMPLETIONS, headers) as connected:
        connected.sendall(b"5\r\n{}   \r\n0\r\n\r\n")
        received = all_of(connected)
        assert received.startswith(b"HTTP/1.1 4")
        assert received.count(b"HTTP/1.1") == 1


def _one_answer(connected: socket.socket) -> bytes:
    """The answer of `/livez` on a connection that stays open."""
    received = b""
    while not received.endswith(b"}"):
        received += connected.recv(1000)
    return received
