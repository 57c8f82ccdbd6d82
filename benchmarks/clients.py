"""Clients that measure: streams of one real server, and many connections that only count answers.

Owns the request bodies and the clock readings. The second client writes and reads plain HTTP/1.1 itself, so that what
is measured is the server and not a client library on the same processors.
"""

import asyncio
import json
import time
from collections.abc import Sequence
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
    parts = urlsplit(url)
    request = (
        f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    share = num_requests // num_connections
    address = (str(parts.hostname), int(parts.port or 80))
    await asyncio.gather(*(_ask_repeatedly(address, request, 2) for _ in range(num_connections)))  # warm
    start = time.perf_counter()
    await asyncio.gather(*(_ask_repeatedly(address, request, share) for _ in range(num_connections)))
    return share * num_connections / (time.perf_counter() - start)


async def _ask_repeatedly(address: tuple[str, int], request: bytes, num_requests: int) -> None:
    reader, writer = await asyncio.open_connection(*address)
    try:
        for _ in range(num_requests):
            writer.write(request)
            await _read_answer(reader)
    finally:
        writer.close()
        await writer.wait_closed()


async def _read_answer(reader: asyncio.StreamReader) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = int(head.partition("content-length:")[2].partition("\r\n")[0])
    content = await reader.readexactly(length)
    if " 200 " not in head.partition("\r\n")[0]:
        raise RuntimeError(f"{head.partition(chr(13))[0]}: {content.decode()}")
