"""The seed replay over HTTP: four clients without think time against one real server.

In: the address of any server with /v1/completions, and entries. Out: one `Answer` for each. The client is the openai
SDK, so that timeouts, hints and errors are those of real clients; its retries are made here, to count them.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import openai

from fairness_answers import Answer
from fairness_trace import NUM_CLIENTS, SDK_RETRIES, Desk, Entry

REFUSED = frozenset({429, 503, 529})
PATIENT_SECONDS = 24 * 3600.0

ONE_CONNECTION_EACH: Final = {"Connection": "close"}
"""llama.cpp's server closes an idle connection in the moment in which a client may take it for its next request."""


@dataclass(frozen=True, slots=True)
class Clients:
    """How the four clients ask. `keys`: the API key of each; streams are read token by token, plain answers at once."""

    url: str
    model: str
    keys: Sequence[str]
    tenants: Sequence[str]
    timeout_seconds: float = PATIENT_SECONDS
    streamed: bool = True


def ask_all(clients: Clients, entries: Sequence[Entry]) -> list[Answer]:
    """Every entry once, in the order of the desk."""
    return asyncio.run(_ask_all(clients, entries))


def ask_one(clients: Clients, entry: Entry) -> Answer:
    """One entry alone."""
    return ask_all(clients, [entry])[0]


async def _ask_all(clients: Clients, entries: Sequence[Entry]) -> list[Answer]:
    desk, start = Desk(entries, clients.tenants), time.perf_counter()
    answers: list[Answer] = []
    await asyncio.gather(*(_Client(clients, number, desk, start, answers).work() for number in range(NUM_CLIENTS)))
    return answers


@dataclass(slots=True)
class _Marks:
    """Of the latest try, in seconds since the start of the replay."""

    got_slot: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    longest_gap: float = 0.0
    num_chunks: int = 0
    text: str = ""
    output_tokens: int = 0


class _Client:
    """One of the four: asks for the next entry as soon as it has an answer."""

    def __init__(self, clients: Clients, number: int, desk: Desk, start: float, answers: list[Answer]) -> None:
        self._clients = clients
        self._number = number
        self._desk = desk
        self._start = start
        self._answers = answers
        self._api = openai.AsyncOpenAI(
            base_url=f"{clients.url}/v1",
            api_key=clients.keys[number],
            timeout=clients.timeout_seconds,
            max_retries=0,
            default_headers=ONE_CONNECTION_EACH,
        )

    async def work(self) -> None:
        async with self._api:
            while (entry := self._desk.next_for(self._number)) is not None:
                self._answers.append(await self._ask(entry))

    async def _ask(self, entry: Entry) -> Answer:
        sent, gave_up, refusals, wasted = self._now(), 0, 0, 0
        for _ in range(SDK_RETRIES + 1):
            marks = _Marks()
            try:
                await self._try(entry, marks)
            except openai.APITimeoutError:
                gave_up, wasted = gave_up + 1, wasted + marks.num_chunks
            except openai.APIStatusError as error:
                if error.status_code not in REFUSED:
                    raise
                refusals += 1
                await asyncio.sleep(float(error.response.headers.get("retry-after", "1")))
            else:
                return self._answer(entry, sent, marks, gave_up, refusals, wasted, has_failed=False)
        return self._answer(entry, sent, _Marks(), gave_up, refusals, wasted, has_failed=True)

    async def _try(self, entry: Entry, marks: _Marks) -> None:
        if self._clients.streamed:
            await self._stream(entry, marks)
            return
        completion = await self._api.completions.create(**self._body(entry), stream=False)
        marks.got_slot = marks.first_token = self._now()
        marks.text = completion.choices[0].text
        marks.output_tokens = completion.usage.completion_tokens if completion.usage is not None else 0

    async def _stream(self, entry: Entry, marks: _Marks) -> None:
        stream = await self._api.completions.create(
            **self._body(entry), stream=True, stream_options={"include_usage": True}
        )
        marks.got_slot = self._now()
        async for chunk in stream:
            if chunk.usage is not None:
                marks.output_tokens = chunk.usage.completion_tokens
            if not chunk.choices:
                continue
            now = self._now()
            if marks.num_chunks == 0:
                marks.first_token = now
            else:
                marks.longest_gap = max(marks.longest_gap, now - marks.last_token)
            marks.last_token = now
            marks.num_chunks += 1
            marks.text += chunk.choices[0].text

    def _body(self, entry: Entry) -> dict[str, Any]:
        return {
            "model": self._clients.model,
            "prompt": prompt_of(entry),
            "max_tokens": entry.output_tokens,
            "temperature": 0,
            "extra_body": {"ignore_eos": True},
        }

    def _answer(
        self, entry: Entry, sent: float, marks: _Marks, gave_up: int, refusals: int, wasted: int, has_failed: bool
    ) -> Answer:
        now = self._now()
        return Answer(
            entry=entry,
            tenant=self._clients.tenants[self._number],
            sent=sent,
            got_slot=now if has_failed else marks.got_slot,
            first_token=now if has_failed else marks.first_token,
            ended=now,
            output_tokens=marks.output_tokens,
            longest_gap=marks.longest_gap,
            text=marks.text,
            gave_up=gave_up,
            wasted_tokens=wasted,
            refusals=refusals,
            was_cut=not has_failed and marks.output_tokens < entry.output_tokens,
            has_failed=has_failed,
        )

    def _now(self) -> float:
        return time.perf_counter() - self._start


def prompt_of(entry: Entry) -> str:
    """About thirty tokens that no other entry begins with."""
    return f"{entry.number}. Here is the long story of ship number {entry.number}, its master, its cargo, and its mark."
