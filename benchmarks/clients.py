"""Clients that measure: streams of one real server, and many connections that only count answers.

Owns the request bodies and the clock readings. The second client writes and reads plain HTTP/1.1 itself, so that what
is measured is the server and not a client library on the same processors; run it with uvloop.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import cast
from urllib.parse import urlsplit

import httpx

from plimsoll_runtime.contract.endpoints import COMPLETIONS
from timing import StreamTiming


async def stream_all(url: str, model: str, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[StreamTiming]:
    """Every prompt as a streamed completion, all sent at once; each answer has exactly `num_tokens`."""
    async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False) as client:
        start = time.perf_counter()
        streams = (_stream(client, model, prompt, num_tokens, start) for prompt in prompts)
        return list(await asyncio.gather(*streams))


async def _stream(
    client: httpx.AsyncClient, model: str, prompt: Sequence[int], num_tokens: int, start: float
) -> StreamTiming:
    body = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    times: list[float] = []
    output_tokens = 0
    async with client.stream("POST", COMPLETIONS, json=body) as answer:
        if answer.status_code != 200:
            raise RuntimeError(f"status {answer.status_code}: {(await answer.aread()).decode()}")
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if chunk["choices"]:
                times.append(time.perf_counter() - start)
            if chunk.get("usage"):
                output_tokens = chunk["usage"]["completion_tokens"]
    if output_tokens != num_tokens:
        raise RuntimeError(f"{output_tokens} tokens came, {num_tokens} were asked for")
    return StreamTiming(times[0], times[-1], output_tokens)


async def requests_per_second(url: str, body: bytes, num_connections: int, num_requests: int) -> float:
    """Answers per second over kept connections, each of which sends its next request when the last is answered."""
    share = num_requests // num_connections
    await _ask_all(url, body, num_connections, 2)  # warm
    start = time.perf_counter()
    await _ask_all(url, body, num_connections, share)
    return share * num_connections / (time.perf_counter() - start)


async def request_seconds(url: str, body: bytes, num_requests: int) -> list[float]:
    """How long each answer took, over one kept connection."""
    [asking] = await _ask_all(url, body, 1, num_requests)
    return asking.seconds


async def _ask_all(url: str, body: bytes, num_connections: int, num_requests: int) -> list["_Asking"]:
    parts = urlsplit(url)
    request = (
        f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    loop = asyncio.get_running_loop()
    connecting = (
        loop.create_connection(lambda: _Asking(loop, request, num_requests), str(parts.hostname), int(parts.port or 80))
        for _ in range(num_connections)
    )
    askings = [asking for _, asking in await asyncio.gather(*connecting)]
    for asking in askings:
        asking.ask()
    await asyncio.gather(*(asking.done for asking in askings))
    return askings


class _Asking(asyncio.Protocol):
    """One connection: the same request again and again. `done` is set after the last answer, `seconds` has each."""

    def __init__(self, loop: asyncio.AbstractEventLoop, request: bytes, num_requests: int) -> None:
        self.done: asyncio.Future[None] = loop.create_future()
        self.seconds: list[float] = []
        self._request = request
        self._left = num_requests
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def ask(self) -> None:
        self._asked_at = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, blank, content = self._received.partition(b"\r\n\r\n")
        if not blank or len(content) < _content_length(head):
            return
        self.seconds.append(time.perf_counter() - self._asked_at)
        self._received, self._left = b"", self._left - 1
        if not head.startswith(b"HTTP/1.1 200 "):
            self._end(RuntimeError(content.decode()))
        elif self._left:
            self.ask()
        else:
            self._end(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or RuntimeError("the server closed the connection"))

    def _end(self, error: Exception | None) -> None:
        self.done.set_exception(error) if error else self.done.set_result(None)
        self._transport.close()


def _content_length(head: bytes) -> int:
    return int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
