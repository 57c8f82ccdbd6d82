"""Clients that do what no SDK offers: leave without ceremony, or wait in a thread of their own."""

import json
import socket
import threading
from collections.abc import Mapping
from typing import Any

import httpx

from doubles.server import MODEL, ScriptedServer
from routes.four_routes import ASK


def send_raw(server: ScriptedServer, route: str, text: str, stream: bool, limit: int = 30_000) -> socket.socket:
    """A request on a bare socket, which can be dropped without ceremony."""
    ask = ASK[route]
    body = {"model": MODEL, "ignore_eos": True, "stream": stream, ask.limit_field: limit, **ask.body(text)}
    payload = json.dumps(body).encode()
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    head = (
        f"POST {route} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
    )
    connection.sendall(head.encode() + payload)
    return connection


class Clients:
    """Requests in threads of their own, and their answers."""

    def __init__(self, server: ScriptedServer) -> None:
        self._server = server
        self._threads: list[threading.Thread] = []
        self.answers: list[httpx.Response] = []

    def send(
        self,
        route: str,
        limit: int = 4,
        stream: bool = False,
        text: str = "hello",
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        def post() -> None:
            ask = ASK[route]
            body = {"model": MODEL, "ignore_eos": True, ask.limit_field: limit, "stream": stream, **ask.body(text)}
            self.answers.append(self._server.client.post(route, json={**body, **more}, headers=headers))

        thread = threading.Thread(target=post)
        thread.start()
        self._threads.append(thread)

    def statuses(self) -> list[int]:
        for thread in self._threads:
            thread.join(30)
        return sorted(answer.status_code for answer in self.answers)
