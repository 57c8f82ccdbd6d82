"""One server process from its socket to its exit code: start, load, ready, drain, stop.

Owns signals and the order of the end. In: an app, its `Front`, and what loads the model. Out: an exit code: 0 after a
drain, 1 when the model could not be loaded or the engine died. Invariants: the socket answers from the first moment
(live, not ready); SIGTERM turns readiness off, refuses new work, lets running requests finish within the grace, then
tells the rest with an error event; a second signal cuts the grace short; nothing here hangs.
"""

import asyncio
import concurrent.futures
import contextlib
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any, TypeVar

import uvicorn
from starlette.types import ASGIApp

from plimsoll_runtime.connection import BoundedHeads
from plimsoll_runtime.contract.config import field_names
from plimsoll_runtime.contract.last_words import StartError, give_up
from plimsoll_runtime.routes.front import Front

LAST_WORDS_SECONDS = 2.0
"""After the end of every answer: for error events and closing connections to reach their clients."""

Result = TypeVar("Result")


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises StartError when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise StartError(
            f"{host}:{port} cannot be listened on ({error.strerror or error}): choose another with "
            f"{field_names('host')} and {field_names('port')}"
        ) from None
    sock.setblocking(False)
    return sock


async def unawaited_at_exit(work: Callable[[], Result]) -> Result:
    """`work` in a thread that the end of the process does not wait for: reading a model may take minutes."""
    outcome: concurrent.futures.Future[Result] = concurrent.futures.Future()
    outcome.set_running_or_notify_cancel()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="plimsoll-load", daemon=True).start()
    return await asyncio.wrap_future(outcome)


def http_settings(app: ASGIApp, **more: Any) -> uvicorn.Config:
    """How this server speaks HTTP; `more` are settings of uvicorn about its socket and its log."""
    settings = {"log_level": "warning", "timeout_graceful_shutdown": 2, **more}
    return uvicorn.Config(app, http=BoundedHeads, access_log=False, lifespan="off", server_header=False, **settings)


class _Uvicorn(uvicorn.Server):
    """Uvicorn whose signals start our drain instead of its own shutdown."""

    def __init__(self, config: uvicorn.Config, on_signal: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_signal = on_signal

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._on_signal()


async def run_server(
    app: ASGIApp, front: Front, sock: socket.socket, load: Callable[[], Awaitable[None]], grace_seconds: float
) -> int:
    """Serves until a signal or a failure; `load` sets `front.service` and raises StartError when it cannot."""
    stop = _Stop(asyncio.get_running_loop())
    server = _Uvicorn(http_settings(app), stop.request)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        return await _until_stopped(front, stop, load, grace_seconds)
    finally:
        server.should_exit = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(serving, LAST_WORDS_SECONDS + 2)
        if front.service is not None:
            front.service.close()


class _Stop:
    """Counts signals: the first begins the drain, the second ends it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def request(self) -> None:
        """Called by the signal handler, on the main thread."""
        event = self.second if self.first.is_set() else self.first
        self._loop.call_soon_threadsafe(event.set)


async def _until_stopped(front: Front, stop: _Stop, load: Callable[[], Awaitable[None]], grace_seconds: float) -> int:
    loading = asyncio.ensure_future(load())
    if await _first(stop.first.wait(), loading) is not loading:
        loading.cancel()
        return 0
    try:
        loading.result()
    except StartError as error:
        return give_up("serve", str(error))
    assert front.service is not None, "loading without an error sets the service"
    service = front.service
    crashed = asyncio.ensure_future(service.crashed.wait())
    if await _first(stop.first.wait(), crashed) is crashed:
        code = give_up("serve", "the engine stopped: the log says why")
        await asyncio.sleep(LAST_WORDS_SECONDS / 2)
        return code
    service.begin_drain()
    print(
        f"plimsoll serve: stopping: no new work; {service.house.inside} running requests may finish within "
        f"{grace_seconds:g} s ({field_names('drain_seconds')}), a second signal cuts them short",
        file=sys.stderr,
        flush=True,
    )
    await _first(stop.second.wait(), asyncio.ensure_future(service.drain(grace_seconds)))
    await service.drain(0)
    return 0


async def _first(signalled: Awaitable[object], other: "asyncio.Future[Any]") -> object:
    """Whichever is done first, by identity; a waiting signal is cancelled."""
    waiting = asyncio.ensure_future(signalled)
    done, _ = await asyncio.wait({waiting, other}, return_when=asyncio.FIRST_COMPLETED)
    if waiting not in done:
        waiting.cancel()
    return other if other in done else waiting
