"""One admitted request on its way to an answer: engine events in, answer events out.

Owns the state of a request between the engine and its route. In: `EngineEvent`s, on the event loop's thread. Out: an
async iterator of `AnswerEvent`s that ends after one `Ended` or `Broken`. Invariants: it ends once; an end of any kind
gives its place in the house back; a stop string ends its choice in the engine too.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Protocol, assert_never

from plimsoll_runtime.admission.deadlines import Times
from plimsoll_runtime.admitted import AdmittedRequest
from plimsoll_runtime.assembly import CallReading, ChoiceAssembly, ReasoningReading, text_logprob
from plimsoll_runtime.contract.config import field_names
from plimsoll_runtime.contract.endpoints import HEADER_REQUEST_TIMEOUT
from plimsoll_runtime.contract.metrics import Outcome
from plimsoll_runtime.events import (
    Aborted,
    AnswerEvent,
    Begun,
    Broken,
    ChoiceEnded,
    Echo,
    Ended,
    EngineEvent,
    Expired,
    Failed,
    Finished,
    Notice,
    Paused,
    PrefillDone,
    Resumed,
    Started,
    Token,
    Usage,
)
from plimsoll_runtime.meters import Meters
from plimsoll_runtime.refusal import Refusal
from plimsoll_runtime.request import ChatPrompt, GenerationRequest, TextPrompt
from plimsoll_runtime.text.reasoning import ReasoningFormat
from plimsoll_runtime.text.stop_strings import StopMatcher
from plimsoll_runtime.text.tokenizer import Tokenizer
from plimsoll_runtime.text.tool_calls.formats import ToolCallFormat

CALL_ID_BYTES = 12


class _Engine(Protocol):
    def abort(self, request_id: str, choice: int | None = None) -> None: ...


class Home(Protocol):
    """What a generation needs of the service."""

    meters: Meters

    @property
    def engine(self) -> _Engine: ...

    def clock(self) -> float: ...

    def too_late(self, generation: "Generation", now: float) -> Refusal: ...

    def forget(self, generation: "Generation") -> None: ...


class Generation:
    """`started` resolves to None when the first sequence has a slot, or to the Refusal that came instead."""

    def __init__(
        self,
        admitted: AdmittedRequest,
        request: GenerationRequest,
        stops: tuple[str, ...],
        tokenizer: Tokenizer,
        *,
        tool_calls: ToolCallFormat | None,
        reasoning: ReasoningFormat | None,
        times: Times,
        service: Home,
    ) -> None:
        self.admitted = admitted
        self.request = request
        self.request_id = admitted.request_id
        self.times = times
        self.started: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        self._tokenizer = tokenizer
        self._service = service
        self._said: list[AnswerEvent | Notice] = []
        self._has_said = asyncio.Event()
        matcher = StopMatcher(stops)
        self._choices = [
            ChoiceAssembly(
                choice,
                tokenizer,
                matcher.fresh() if stops else None,
                admitted.stop_token_ids,
                admitted.min_tokens,
                _call_reading(request, tool_calls),
                None if reasoning is None else self._reasoning_reading(choice, reasoning),
            )
            for choice in range(len(admitted.prompts) * admitted.num_choices)
        ]
        self._last_token_at: dict[int, float] = {}
        self._waited_seconds = 0.0
        self._paused_at: float | None = None
        self._num_ended = 0
        self._cached_tokens = 0
        self._is_closed = False

    def _reasoning_reading(self, choice: int, reasoning: ReasoningFormat) -> ReasoningReading:
        """Text that continues a text is one piece: its reasoning is counted, and left where it stands."""
        prompt = choice // self.admitted.num_choices
        asked = self.request.prompts[prompt]
        arguments = asked.template_arguments if isinstance(asked, ChatPrompt) else None
        splitter = reasoning.splitter(self.admitted.prompts[prompt].token_ids, arguments)
        return ReasoningReading(splitter, reasoning.shown_ids, is_shown=arguments is None)

    @property
    def has_begun(self) -> bool:
        return self.started.done()

    def lengths(self) -> Iterator[tuple[int, bool]]:
        """Output tokens of each choice so far, and whether it ended by itself."""
        for choice in self._choices:
            yield choice.output_tokens, choice.ended is not None and choice.ended.reason != "length"

    async def events(self) -> AsyncIterator[AnswerEvent]:
        """Every event of the answer once; the last is Ended or Broken."""
        while True:
            for event in await self.next_events():
                if not isinstance(event, Notice):
                    yield event
                if isinstance(event, Ended | Broken):
                    return

    async def next_events(self) -> list[AnswerEvent | Notice]:
        """All that was said since the last call, at least one: a step often says several things at once.

        Nothing is lost when the wait is cancelled. Nothing comes after Ended or Broken, so do not wait for it.
        """
        await self._has_said.wait()
        self._has_said.clear()
        said, self._said = self._said, []
        return said

    def receive(self, event: EngineEvent, now: float) -> None:
        """One event of the engine for this request, at `now`."""
        match event:
            case Started():
                self._begin(now)
            case PrefillDone():
                self._prefill_done(event)
            case Token():
                self._token(event, now)
            case Finished():
                self._finished(event, now)
            case Expired():
                self.refuse(self._service.too_late(self, now))
            case Paused():
                self._paused_at = now
                self._say(Notice("paused"))
            case Resumed():
                self._resume(now)
                self._say(Notice("resumed"))
            case Aborted():
                self.break_off(Broken("deadline_exceeded", self._deadline_message(now)))
            case Failed():
                self.break_off(Broken(event.code, event.message))
            case _:
                assert_never(event)

    def _begin(self, now: float) -> None:
        self._waited_seconds = now - self.times.arrival
        self._service.meters.started(self._waited_seconds)
        self._say(Begun(self.admitted.prompt_tokens))
        self.started.set_result(None)

    def _resume(self, now: float) -> None:
        if self._paused_at is not None:
            self._waited_seconds += now - self._paused_at
            self._paused_at = None

    def _deadline_message(self, now: float) -> str:
        return (
            f"the answer was not complete {now - self.times.arrival:.1f} s after its request: ask for fewer tokens, "
            f"give it more time ({HEADER_REQUEST_TIMEOUT}; {field_names('request_timeout')} on the server), or let an "
            f"answer end with what it has ({field_names('on_deadline')})"
        )

    def refuse(self, refusal: Refusal) -> None:
        """The request never got a slot; its route answers with a plain status."""
        if not self.started.done():
            self.started.set_result(refusal)
        self._end("refused")

    def break_off(self, broken: Broken) -> None:
        """The answer cannot be completed."""
        if not self.started.done():
            self.refuse(Refusal(code=broken.code, message=broken.message))
            return
        self._say(broken)
        self._end("failed")

    def close(self) -> None:
        """The client has left, or has read everything: what still runs is aborted."""
        self._end("cancelled")

    def _prefill_done(self, event: PrefillDone) -> None:
        num_choices = self.admitted.num_choices
        prompt = self.admitted.prompts[event.choice // num_choices]
        if event.choice % num_choices == 0:
            self._cached_tokens += event.cached_tokens
            self._service.meters.prompt_done(len(prompt.token_ids), event.cached_tokens)
        if not self.request.echo:
            return
        asked = self.request.prompts[event.choice // num_choices]
        logprobs = event.prompt_logprobs
        self._say(
            Echo(
                choice=event.choice,
                text=asked.text if isinstance(asked, TextPrompt) else self._tokenizer.decode(prompt.token_ids),
                logprobs=None
                if logprobs is None
                else tuple(
                    None if entry is None else text_logprob(self._tokenizer, token_id, entry)
                    for token_id, entry in zip(prompt.token_ids, logprobs, strict=True)
                ),
                prompt_token_texts=tuple(
                    self._tokenizer.token_bytes(token_id).decode("utf-8", "replace") for token_id in prompt.token_ids
                ),
            )
        )

    def _token(self, event: Token, now: float) -> None:
        choice = self._choices[event.choice]
        if choice.ended is not None:
            return
        last = self._last_token_at.get(event.choice)
        self._last_token_at[event.choice] = now
        self._service.meters.token(now - self.times.arrival, None if last is None else now - last)
        for said in choice.push(event):
            self._say(said)
        if choice.ended is not None:
            self._service.engine.abort(self.request_id, event.choice)
            self._choice_ended(choice.ended, now)

    def _finished(self, event: Finished, now: float) -> None:
        choice = self._choices[event.choice]
        if choice.ended is not None:
            return
        for said in choice.finish(event.reason, event.detail):
            self._say(said)
        assert choice.ended is not None, "finish ends a choice"
        self._choice_ended(choice.ended, now)

    def _choice_ended(self, ended: ChoiceEnded, now: float) -> None:
        self._say(ended)
        self._num_ended += 1
        if self._num_ended == len(self._choices):
            reached_limit = any(choice.ended and choice.ended.reason == "length" for choice in self._choices)
            self._say(Ended(self._usage()))
            self._resume(now)
            self._service.meters.served(now - self.times.arrival, self._waited_seconds)
            self._end("length" if reached_limit else "completed")

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.admitted.prompt_tokens,
            output_tokens=sum(choice.output_tokens for choice in self._choices),
            cached_tokens=self._cached_tokens,
            reasoning_tokens=sum(choice.ended.reasoning_tokens for choice in self._choices if choice.ended),
        )

    def _say(self, event: AnswerEvent | Notice) -> None:
        self._said.append(event)
        self._has_said.set()

    def _end(self, outcome: Outcome) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if outcome not in {"completed", "length"}:
            self._service.engine.abort(self.request_id)
        if outcome != "refused":
            self._service.meters.ended(self.request.route, outcome, self._service.clock() - self.times.arrival)
        self._service.forget(self)


def _call_reading(request: GenerationRequest, tool_calls: ToolCallFormat | None) -> CallReading | None:
    if request.tool_use is None:
        return None
    assert tool_calls is not None, "admission refuses tools where no parser is configured"
    return CallReading(
        tool_calls.parser(request.tool_use), tool_calls.shown_ids, lambda: secrets.token_hex(CALL_ID_BYTES)
    )
