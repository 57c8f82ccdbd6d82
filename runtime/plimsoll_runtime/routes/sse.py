"""Server-sent events over ASGI: frames out, pings in silence, and a watch on the client.

Owns the wire form of frames, of pings and of notices (comments, which every client skips), and the end of a stream.
Invariants: a client that leaves stops the generation; a stream that broke says so in its dialect and then ends; nothing
is sent before the first event exists.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from plimsoll_runtime.events import AnswerEvent, Broken, Ended, Notice
from plimsoll_runtime.routes.dialect import Frame, StreamWriter

COMMENT_PING = b": ping\n\n"
_LOG = logging.getLogger("plimsoll")


class ClientGoneError(Exception):
    """The client closed its connection before the answer was complete."""


def frame_bytes(frame: Frame) -> bytes:
    """`data` must be one line, as JSON without indentation is."""
    event = f"event: {frame.event}\n" if frame.event else ""
    return f"{event}data: {frame.data}\n\n".encode()


class WhileClientStays:
    """`async with` this: when the client leaves, what runs inside is cancelled and ClientGoneError raised.

    The request's body must have been read: from then on the only message is the disconnect. One task watches; the work
    itself stays in the task that it is in (as in asyncio.timeout, whose way of cancelling this is).
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._has_left = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "requests are handled in tasks"
        self._task = task
        self._cancelling = task.cancelling()
        self._watcher = asyncio.ensure_future(_until_disconnect(self._receive))
        self._watcher.add_done_callback(self._leave)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._watcher.remove_done_callback(self._leave)
        self._watcher.cancel()
        is_ours = self._has_left and self._task.uncancel() <= self._cancelling
        if is_ours and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise ClientGoneError from error

    def _leave(self, _watcher: "asyncio.Future[None]") -> None:
        self._has_left = True
        self._task.cancel()


class EventStream(Response):
    """A stream of one answer. `next_events` gives all that has come, and ends with Ended or Broken (generation.py).
    `on_close` runs when the stream is over, however it ended."""

    media_type = "text/event-stream"

    def __init__(
        self,
        next_events: Callable[[], Awaitable[Sequence[AnswerEvent | Notice]]],
        writer: StreamWriter,
        *,
        headers: dict[str, str],
        ping: Frame | None,
        ping_seconds: float,
        on_event: Callable[[AnswerEvent], None],
        on_close: Callable[[], None],
    ) -> None:
        self._next_events = next_events
        self._writer = writer
        self._ping = COMMENT_PING if ping is None else frame_bytes(ping)
        self._ping_seconds = ping_seconds
        self._on_event = on_event
        self._on_close = on_close
        self._is_over = False
        super().__init__(None, headers={**headers, "cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            # The client left: `on_close` aborts what still runs.
            with contextlib.suppress(ClientGoneError, OSError):
                async with WhileClientStays(receive):
                    await self._send_all(send)
        finally:
            self._on_close()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        while not self._is_over:
            chunk = await self._next_chunk()
            if chunk or self._is_over:
                await send({"type": "http.response.body", "body": chunk, "more_body": not self._is_over})

    async def _next_chunk(self) -> bytes:
        """The frames of all events that have come, in one piece, or a ping after the longest silence."""
        try:
            async with asyncio.timeout(self._ping_seconds):
                events = await self._next_events()
        except TimeoutError:
            return self._ping
        return b"".join(self._written(event) for event in events if not self._is_over)

    def _written(self, event: AnswerEvent | Notice) -> bytes:
        """The frames of one event. A writer that fails ends the stream with its dialect's error event."""
        if isinstance(event, Notice):
            return f": {event.word}\n\n".encode()
        self._is_over = isinstance(event, Ended | Broken)
        try:
            self._on_event(event)
            return _joined(self._writer.to_chunks(event))
        except Exception:
            _LOG.exception("a stream could not be written")
            self._is_over = True
            return _joined(self._writer.to_chunks(Broken("engine_failure", "the answer could not be written")))


def _joined(frames: Iterable[Frame]) -> bytes:
    return b"".join(frame_bytes(frame) for frame in frames)


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
