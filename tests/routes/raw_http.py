"""Requests written to the socket byte by byte, where a client library would correct the fault under test."""

import contextlib
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

from doubles.server import ScriptedServer


@contextlib.contextmanager
def connected_to(server: ScriptedServer) -> Iterator[socket.socket]:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as connected:
        yield connected


@contextlib.contextmanager
def begun_post(server: ScriptedServer, path: str, headers: str) -> Iterator[socket.socket]:
    """A connection on which a POST of JSON has begun."""
    with connected_to(server) as connected:
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{headers}\r\n\r\n"
        connected.sendall(head.encode("latin-1"))
        yield connected


def all_of(connected: socket.socket) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionError):  # bytes that nobody read turn the end into a reset
        while piece := connected.recv(65_536):
            received += piece
    return received
