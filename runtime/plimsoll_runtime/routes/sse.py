"""Server-sent events over ASGI: frames out, pings in silence, and a watch on the client.

Owns the wire form of frames and the end of a stream. Invariants: a client that leaves stops the generation; a stream
that broke says so in its dialect and then ends; nothing is sent before the first event exists.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from plimsoll_runtime.events import AnswerEvent, Broken
from plimsoll_runtime.routes.dialect import Frame, StreamWriter

COMMENT_PING = b": ping\n\n"
_LOG = logging.getLogger("plimsoll")

Result = TypeVar("Result")
Item = TypeVar("Item")


class ClientGoneError(Exception):
    """The client closed its connection before the answer was complete."""


def frame_bytes(frame: Frame) -> bytes:
    """`data` must be one line, as JSON without indentation is."""
    event = f"event: {frame.event}\n" if frame.event else ""
    return f"{event}data: {frame.data}\n\n".encode()


async def unless_gone(receive: Receive, work: Awaitable[Result]) -> Result:
    """The result of `work`; when the client leaves first, `work` is cancelled and ClientGoneError raised.

    The request's body must have been read: from then on the only message is the disconnect.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_until_disconnect(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGoneError
        return working.result()
    finally:
        watching.cancel()
        if not working.done():
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


class EventStream(Response):
    """A stream of one answer. `on_close` runs when the stream is over, however it ended."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[AnswerEvent],
        writer: StreamWriter,
        *,
        headers: dict[str, str],
        ping: Frame | None,
        ping_seconds: float,
        on_event: Callable[[AnswerEvent], None],
        on_close: Callable[[], None],
    ) -> None:
        self._events = events
        self._writer = writer
        self._ping = COMMENT_PING if ping is None else frame_bytes(ping)
        self._ping_seconds = ping_seconds
        self._on_event = on_event
        self._on_close = on_close
        self._is_broken = False
        super().__init__(None, headers={**headers, "cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with contextlib.suppress(ClientGoneError, OSError):  # the client left: `on_close` aborts what still runs
                await unless_gone(receive, self._send_all(send))
        finally:
            self._on_close()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for event in with_pings(self._events, self._ping_seconds):
            chunk = self._ping if event is None else self._written(event)
            if chunk:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            if self._is_broken:
                break
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _written(self, event: AnswerEvent) -> bytes:
        """The frames of one event. A writer that fails ends the stream with its dialect's error event."""
        try:
            self._on_event(event)
            return _joined(self._writer.to_chunks(event))
        except Exception:
            _LOG.exception("a stream could not be written")
            self._is_broken = True
            return _joined(self._writer.to_chunks(Broken("engine_failure", "the answer could not be written")))


async def with_pings(items: AsyncIterator[Item], seconds: float) -> AsyncIterator[Item | None]:
    """Every item, and None after each `seconds` of silence."""
    upcoming: asyncio.Future[Item] = asyncio.ensure_future(anext(items))
    try:
        while True:
            done, _ = await asyncio.wait({upcoming}, timeout=seconds)
            if not done:
                yield None
                continue
            try:
                item = upcoming.result()
            except StopAsyncIteration:
                return
            yield item
            upcoming = asyncio.ensure_future(anext(items))
    finally:
        upcoming.cancel()


def _joined(frames: Iterable[Frame]) -> bytes:
    return b"".join(frame_bytes(frame) for frame in frames)


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
