"""The routes that tell: models, budgets, token counts, health and metrics.

Owns their small JSON bodies. In: ASGI requests. Out: facts of the loaded model and of the engine's load; never a
prompt, a key or a user. `/budget` is what the operator compares with the declared limits.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from plimsoll_runtime.contract import endpoints
from plimsoll_runtime.refusal import Refusal
from plimsoll_runtime.request import GenerationRequest, TextPrompt, TokenPrompt
from plimsoll_runtime.routes.body import refuse, refuse_unsupported, refusing
from plimsoll_runtime.routes.dialect import Dialect
from plimsoll_runtime.routes.errors import RETRY_AFTER_SECONDS, error_body, error_response, error_status, nobody_left
from plimsoll_runtime.routes.front import Front
from plimsoll_runtime.routes.intake import read_body
from plimsoll_runtime.routes.messages import to_count_request
from plimsoll_runtime.routes.responses_memory import ResponsesMemory
from plimsoll_runtime.service import Service

Asked = TypeVar("Asked")


@dataclass(frozen=True, slots=True)
class _Question:
    """What `/v1/budget` is asked: the route, and what its dialect makes of the request."""

    route: str
    request: GenerationRequest | Refusal


class Information:
    """All of them, over one `Front`."""

    def __init__(self, front: Front, dialects: Mapping[str, Dialect]) -> None:
        self._front = front
        self._dialects = dialects

    async def livez(self, request: Request) -> Response:
        live = self._front.is_live()
        return JSONResponse({"status": "live" if live else "dead"}, 200 if live else 503)

    async def readyz(self, request: Request) -> Response:
        ready = self._front.is_ready()
        if ready:
            return JSONResponse({"status": "ready"})
        status = "loading" if self._front.service is None else "not ready"
        return JSONResponse({"status": status}, 503, headers={"retry-after": str(RETRY_AFTER_SECONDS["unavailable"])})

    async def metrics(self, request: Request) -> Response:
        return Response(self._front.meters.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def budget(self, request: Request) -> Response:
        service = self._front.loaded()
        if isinstance(service, Refusal):
            return self._refused(service, endpoints.BUDGET)
        limits, load = service.admission.limits, service.engine.load()
        return JSONResponse(
            {
                "model": self._front.served_name,
                "revision": self._front.revision,
                "context_length": limits.context_length,
                "max_output_default": limits.max_output_default,
                "max_output_limit": limits.max_output_limit,
                "over_budget": limits.over_budget,
                "running_slots": self._front.config.running_slots,
                "kv_capacity_tokens": self._front.kv_capacity_tokens,
                "offload": dict(self._front.offload),
                "kernels": dict(self._front.kernels),
                "load": {
                    "running": load.running,
                    "waiting": load.waiting,
                    "paused": load.paused,
                    "oldest_wait_seconds": round(load.oldest_wait_seconds, 3),
                },
            }
        )

    async def models(self, request: Request) -> Response:
        service = self._front.loaded()
        if isinstance(service, Refusal):
            return self._refused(service, endpoints.MODELS)
        model = self._model(service)
        name = self._front.served_name
        return JSONResponse({"object": "list", "data": [model], "has_more": False, "first_id": name, "last_id": name})

    async def model(self, request: Request) -> Response:
        service = self._front.loaded()
        if isinstance(service, Refusal):
            return self._refused(service, endpoints.MODELS)
        name = request.path_params["model"]
        if name != self._front.served_name:
            refusal = Refusal(code="model_not_found", message=f"the model {name[:80]!r} does not exist", param="model")
            return self._refused(refusal, endpoints.MODELS)
        return JSONResponse(self._model(service))

    async def decide_budget(self, request: Request) -> Response:
        """What a request would be granted, without running it; the queue is not asked."""
        return await self._answer(request, endpoints.DECIDE_BUDGET, self._read_question, self._decide)

    async def count_tokens(self, request: Request) -> Response:
        return await self._answer(request, endpoints.COUNT_TOKENS, to_count_request, self._count)

    async def tokenize(self, request: Request) -> Response:
        return await self._answer(request, endpoints.TOKENIZE, self._read_text, self._tokenize)

    async def detokenize(self, request: Request) -> Response:
        return await self._answer(request, endpoints.DETOKENIZE, self._read_token_ids, self._detokenize)

    async def _answer(
        self,
        request: Request,
        path: str,
        read: Callable[[Mapping[str, Any], Mapping[str, str]], Asked | Refusal],
        answer: Callable[[Asked, Request, Service], Awaitable[dict[str, Any] | Refusal]],
    ) -> Response:
        try:
            asked = await read_body(
                request, self._front.config.max_body_bytes, lambda body: read(body, request.headers)
            )
        except ClientDisconnect:
            return nobody_left()
        if isinstance(asked, Refusal):
            return self._refused(asked, path)
        service = self._front.loaded()
        result = service if isinstance(service, Refusal) else await answer(asked, request, service)
        return self._refused(result, path) if isinstance(result, Refusal) else JSONResponse(result)

    def _read_question(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> _Question | Refusal:
        route, inner = body.get("route"), body.get("request")
        dialect = self._dialects.get(route) if isinstance(route, str) else None
        if dialect is None:
            known = ", ".join(self._dialects)
            return Refusal(code="invalid_value", message=f"route must be one of {known}", param="route")
        if not isinstance(inner, dict):
            return Refusal(code="invalid_type", message="request must be the body of that route", param="request")
        return _Question(dialect.route, dialect.to_request(inner, headers))

    async def _decide(self, asked: _Question, request: Request, service: Service) -> dict[str, Any] | Refusal:
        parsed = asked.request
        if isinstance(parsed, GenerationRequest) and parsed.route == endpoints.RESPONSES:
            parsed = ResponsesMemory(self._front.store).resolve(parsed, request.scope["tenant"])
        decision = parsed if isinstance(parsed, Refusal) else await service.decide(parsed)
        if isinstance(decision, Refusal):
            error = error_body(decision, asked.route, uuid.uuid4().hex)
            return {"admitted": False, "status": error_status(decision, asked.route), "error": error}
        budget = decision.tightest_budget
        return {
            "admitted": True,
            "prompt_tokens": decision.prompt_tokens,
            "requested_output_tokens": budget.requested_output_tokens,
            "max_output_tokens": budget.max_output_tokens,
            "limited_by": budget.limited_by,
            "context_length": budget.context_length,
        }

    async def _count(self, asked: GenerationRequest, request: Request, service: Service) -> dict[str, Any] | Refusal:
        counted = await service.count(asked)
        return counted if isinstance(counted, Refusal) else {"input_tokens": sum(map(len, counted))}

    @refusing
    def _read_text(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> GenerationRequest:
        """`prompt` is text as `/v1/completions` takes it."""
        text = body.get("prompt")
        if not isinstance(text, str):
            raise refuse("invalid_type", "prompt must be a string", "prompt")
        refuse_unsupported(body, {"messages": (), "add_special_tokens": (True,), "return_token_strs": (False,)})
        return GenerationRequest(endpoints.COMPLETIONS, self._named_model(body), "prompt", (TextPrompt(text),))

    async def _tokenize(self, asked: GenerationRequest, request: Request, service: Service) -> dict[str, Any] | Refusal:
        counted = await _counted(asked, service)
        if isinstance(counted, Refusal):
            return counted
        limit = service.admission.limits.context_length
        return {"tokens": counted, "count": len(counted), "max_model_len": limit}

    @refusing
    def _read_token_ids(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> GenerationRequest:
        token_ids = body.get("tokens")
        if not isinstance(token_ids, list) or not all(type(token_id) is int for token_id in token_ids):
            raise refuse("invalid_type", "tokens must be a list of token ids", "tokens")
        return GenerationRequest(
            endpoints.COMPLETIONS, self._named_model(body), "tokens", (TokenPrompt(tuple(token_ids)),)
        )

    async def _detokenize(
        self, asked: GenerationRequest, request: Request, service: Service
    ) -> dict[str, Any] | Refusal:
        counted = await _counted(asked, service)
        if isinstance(counted, Refusal):
            return counted
        return {"prompt": await asyncio.to_thread(service.text.tokenizer.decode, counted)}

    def _named_model(self, body: Mapping[str, Any]) -> str:
        """These two routes may leave the model out: there is one."""
        name = body.get("model")
        if name is None:
            return self._front.served_name
        if not isinstance(name, str):
            raise refuse("invalid_type", "model must be a string", "model")
        return name

    def _model(self, service: Service) -> dict[str, Any]:
        """One object that is a model for OpenAI's clients, for Anthropic's, and for those that look for our limits."""
        limits = service.admission.limits
        most = limits.context_length - 1
        return {
            "id": self._front.served_name,
            "object": "model",
            "created": 0,
            "owned_by": "plimsoll",
            "type": "model",
            "display_name": self._front.served_name,
            "created_at": "1970-01-01T00:00:00Z",
            "capabilities": None,
            "max_input_tokens": most,
            "max_tokens": most if limits.max_output_limit is None else min(most, limits.max_output_limit),
            "context_length": limits.context_length,
            "max_model_len": limits.context_length,
            "max_output_default": limits.max_output_default,
            "max_output_limit": limits.max_output_limit,
        }

    def _refused(self, refusal: Refusal, path: str) -> Response:
        self._front.meters.refused(path, refusal.code)
        return error_response(refusal, path, uuid.uuid4().hex)


async def _counted(asked: GenerationRequest, service: Service) -> list[int] | Refusal:
    """Token ids of the one prompt."""
    counted = await service.count(asked)
    return counted if isinstance(counted, Refusal) else counted[0]
