"""How a stream is cut into writes, what silence says, and what a client that leaves stops."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

import pytest
from starlette.types import Message

from plimsoll_runtime.events import AnswerEvent, Ended, TextDelta, Usage
from plimsoll_runtime.routes.dialect import Frame
from plimsoll_runtime.routes.sse import ClientGoneError, EventStream, WhileClientStays

END = Ended(Usage(prompt_tokens=1, output_tokens=2, cached_tokens=0))
NextEvents = Callable[[], Awaitable[Sequence[AnswerEvent]]]


class Texts:
    """A writer of bare texts, and a word at the end."""

    def to_chunks(self, event: AnswerEvent) -> Iterable[Frame]:
        return [Frame(event.text if isinstance(event, TextDelta) else "end")]


def delta(text: str) -> TextDelta:
    return TextDelta(0, text, ())


async def stays() -> Message:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


def bodies(next_events: NextEvents, ping_seconds: float = 60) -> list[tuple[bytes, bool]]:
    """What is written, and whether more is said to come."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    stream = EventStream(
        next_events,
        Texts(),
        headers={},
        ping=None,
        ping_seconds=ping_seconds,
        on_event=lambda event: None,
        on_close=lambda: None,
    )
    asyncio.run(stream({"type": "http"}, stays, send))
    return [(message["body"], message["more_body"]) for message in sent[1:]]


def test_what_a_step_says_is_one_write_and_the_last_one_ends_the_stream() -> None:
    """What happened before: every event was a write of its own, and the end of the stream one more."""
    steps: Iterator[list[AnswerEvent]] = iter([[delta("a"), delta("b")], [delta("c"), END]])

    async def next_events() -> list[AnswerEvent]:
        return next(steps)

    assert bodies(next_events) == [(b"data: a\n\ndata: b\n\n", True), (b"data: c\n\ndata: end\n\n", False)]


def test_nothing_after_the_end_is_written() -> None:
    async def next_events() -> list[AnswerEvent]:
        return [END, delta("late")]

    assert bodies(next_events) == [(b"data: end\n\n", False)]


def test_silence_is_filled_and_loses_nothing() -> None:
    calls = 0

    async def next_events() -> list[AnswerEvent]:
        nonlocal calls
        calls += 1
        if calls == 1:
            await asyncio.sleep(3600)
        return [delta("a"), END]

    assert bodies(next_events, 0.001) == [(b": ping\n\n", True), (b"data: a\n\ndata: end\n\n", False)]


def test_a_client_that_leaves_stops_what_runs_inside_and_nothing_else() -> None:
    async def leaves() -> Message:
        return {"type": "http.disconnect"}

    async def scenario() -> int:
        with pytest.raises(ClientGoneError):
            async with WhileClientStays(leaves):
                await asyncio.sleep(3600)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    assert asyncio.run(scenario()) == 0, "the cancellation was the block's: the task goes on"


def test_a_cancellation_from_outside_is_not_taken_for_the_client() -> None:
    async def scenario() -> None:
        async def work() -> None:
            async with WhileClientStays(stays):
                await asyncio.sleep(3600)

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())


def test_work_that_ends_first_leaves_no_watcher_behind() -> None:
    async def scenario() -> int:
        async with WhileClientStays(stays):
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    assert asyncio.run(scenario()) == 1, "only this scenario is left"
