"""The one handler behind the four generation routes: read, convert, admit, answer.

Owns the order of a request's checks on the HTTP side and the headers that show the budget. In: an ASGI request and a
`Dialect`. Out: a plain answer, a stream, or a refusal with the same status and body in both modes. It knows no wire
name of any dialect.
"""

import uuid
from dataclasses import replace
from typing import Any, Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from plimsoll_runtime.contract import endpoints
from plimsoll_runtime.contract.metrics import Outcome
from plimsoll_runtime.events import AnswerEvent, Broken
from plimsoll_runtime.generation import Generation
from plimsoll_runtime.refusal import Refusal
from plimsoll_runtime.request import ClientTimeouts, GenerationRequest
from plimsoll_runtime.routes.answer import AnswerFold, whole_answer
from plimsoll_runtime.routes.dialect import Answer, AnswerFacts, Dialect, Frame
from plimsoll_runtime.routes.errors import error_response, nobody_left, speaks_anthropic
from plimsoll_runtime.routes.front import Front
from plimsoll_runtime.routes.intake import read_body
from plimsoll_runtime.routes.json_body import body_text
from plimsoll_runtime.routes.sse import ClientGoneError, EventStream, WhileClientStays

SHORTEST_PING_SECONDS = 0.25


class Memory(Protocol):
    """What a dialect that stores answers adds (responses_memory.ResponsesMemory)."""

    def resolve(self, request: GenerationRequest, tenant: str) -> GenerationRequest | Refusal:
        """The request with the conversation that it goes on from."""
        ...

    def keeps(self, request: GenerationRequest) -> bool:
        """Whether the answer of this request is to be remembered."""
        ...

    def remember(self, request: GenerationRequest, tenant: str, answer: Answer, body: dict[str, Any]) -> None: ...


class GenerationHandler:
    """Answers one route. `ping` is the dialect's own keep-alive frame, None for a comment."""

    def __init__(
        self, front: Front, dialect: Dialect, *, ping: Frame | None = None, memory: Memory | None = None
    ) -> None:
        self._front = front
        self._dialect = dialect
        self._ping = ping
        self._memory = memory

    async def __call__(self, request: Request) -> Response:
        started = self._front.wall_clock()
        try:
            parsed = await self._parse(request)
            outcome = parsed if isinstance(parsed, Refusal) else await self._submit(request, parsed)
        except ClientDisconnect:  # in its body; whoever leaves later is counted by the service
            self._ended("cancelled", started)
            return nobody_left()
        except ClientGoneError:
            return nobody_left()
        if isinstance(outcome, Refusal):
            self._ended("refused", started)
            return self._refused(outcome, uuid.uuid4().hex)
        return await self._answer(request, outcome)

    async def _parse(self, request: Request) -> GenerationRequest | Refusal:
        parsed = await read_body(
            request,
            self._front.config.max_body_bytes,
            lambda body: self._dialect.to_request(body, request.headers),
        )
        if isinstance(parsed, GenerationRequest):
            parsed = replace(parsed, timeouts=_timeouts(request))
            self._front.meters.saw_unknown_fields(self._dialect.route, len(parsed.unknown_fields))
            if self._memory is not None:
                return self._memory.resolve(parsed, request.scope["tenant"])
        return parsed

    async def _submit(self, request: Request, parsed: GenerationRequest) -> Generation | Refusal:
        service = self._front.loaded()
        if isinstance(service, Refusal):
            return service
        async with WhileClientStays(request.receive):
            return await service.submit(parsed, request.scope["tenant"])

    async def _answer(self, request: Request, generation: Generation) -> Response:
        facts = self._facts(generation)
        headers = self._headers(generation)
        tenant = request.scope["tenant"]
        if generation.request.stream:
            return EventStream(
                generation.next_events,
                self._dialect.stream_writer(facts),
                headers=headers,
                ping=self._ping,
                ping_seconds=_ping_seconds(self._front.ping_seconds, generation.times.silence_seconds),
                on_event=_Keeper(self, facts, tenant).add,
                on_close=generation.close,
            )
        try:
            async with WhileClientStays(request.receive):
                answer = await whole_answer(generation.events())
        except ClientGoneError:
            return nobody_left()
        finally:
            generation.close()
        if isinstance(answer, Broken):
            return self._refused(Refusal(code=answer.code, message=answer.message), generation.request_id)
        return self._plain(answer, facts, headers, tenant)

    def _plain(self, answer: Answer, facts: AnswerFacts, headers: dict[str, str], tenant: str) -> Response:
        body = self._dialect.to_response(answer, facts)
        self._remember(answer, facts, tenant, body)
        details = dict.fromkeys(choice.detail.type for choice in answer.choices if choice.detail is not None)
        if details:
            headers[endpoints.HEADER_FINISH_DETAIL] = ", ".join(details)
        return Response(body_text(body), headers=headers, media_type="application/json")

    def keep(self, answer: Answer, facts: AnswerFacts, tenant: str) -> None:
        """Stores a streamed answer as the plain one would have been."""
        self._remember(answer, facts, tenant, self._dialect.to_response(answer, facts))

    def keeps(self, request: GenerationRequest) -> bool:
        return self._memory is not None and self._memory.keeps(request)

    def _remember(self, answer: Answer, facts: AnswerFacts, tenant: str, body: dict[str, Any]) -> None:
        if self._memory is not None:
            self._memory.remember(facts.request, tenant, answer, body)

    def _ended(self, outcome: Outcome, started: float) -> None:
        self._front.meters.ended(self._dialect.route, outcome, self._front.wall_clock() - started)

    def _refused(self, refusal: Refusal, request_id: str) -> Response:
        self._front.meters.refused(self._dialect.route, refusal.code)
        return error_response(refusal, self._dialect.route, request_id)

    def _facts(self, generation: Generation) -> AnswerFacts:
        return AnswerFacts(
            request_id=generation.request_id,
            created=int(self._front.wall_clock()),
            model=self._front.served_name,
            num_choices=generation.admitted.num_choices,
            system_fingerprint=self._front.system_fingerprint,
            request=generation.request,
        )

    def _headers(self, generation: Generation) -> dict[str, str]:
        budget = generation.admitted.tightest_budget
        headers = {
            endpoints.HEADER_PROMPT_TOKENS: str(generation.admitted.prompt_tokens),
            endpoints.HEADER_MAX_OUTPUT_TOKENS: str(budget.max_output_tokens),
            endpoints.HEADER_LIMITED_BY: budget.limited_by,
        }
        if speaks_anthropic(self._dialect.route):
            headers["request-id"] = generation.request_id
        return headers


class _Keeper:
    """Folds a stream on its way out, for the answers that are to be stored."""

    def __init__(self, handler: GenerationHandler, facts: AnswerFacts, tenant: str) -> None:
        self._handler = handler
        self._facts = facts
        self._tenant = tenant
        self._fold = AnswerFold() if handler.keeps(facts.request) else None

    def add(self, event: AnswerEvent) -> None:
        answer = None if self._fold is None else self._fold.add(event)
        if isinstance(answer, Answer):
            self._handler.keep(answer, self._facts, self._tenant)


def _ping_seconds(usual: float, silence: float | None) -> float:
    """Often enough for a client that hangs up after less silence than usual."""
    return usual if silence is None else min(usual, max(silence / 2, SHORTEST_PING_SECONDS))


def _timeouts(request: Request) -> ClientTimeouts:
    said = (request.headers.get(name) for name in endpoints.SDK_TIMEOUT_HEADERS)
    return ClientTimeouts(
        own=request.headers.get(endpoints.HEADER_REQUEST_TIMEOUT), sdk=tuple(text for text in said if text is not None)
    )
