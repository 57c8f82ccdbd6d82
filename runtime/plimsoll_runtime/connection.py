"""A client's connection while the head of a request arrives: bounded in bytes and in time.

Owns two bounds that uvicorn's fast parser does not have. In: bytes from anybody, before a key was asked for. Out: a 400
and the end of the connection. It knows nothing of paths and bodies (routes/intake.py bounds those). Invariants: nobody
makes the server hold more of a head than `MAX_HEAD_BYTES` and one read of the socket; a connection on which no head
became complete for `HEAD_SECONDS` is closed.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 30.0


class BoundedHeads(HttpToolsProtocol):
    """Uvicorn's protocol over httptools, with these bounds."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._is_in_head = False
        self._head_bytes = 0
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begin_head()

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        if self._is_in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._is_in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The head of the request exceeds {MAX_HEAD_BYTES:,} bytes.")

    def _begin_head(self) -> None:
        self._end_head()
        self._is_in_head, self._head_bytes = True, 0
        self._patience = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _end_head(self) -> None:
        self._is_in_head = False
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
