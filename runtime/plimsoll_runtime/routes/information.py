"""The routes that tell: models, budgets, token counts, health and metrics.

Owns their small JSON bodies. In: ASGI requests. Out: facts of the loaded model and of the engine's load; never a
prompt, a key or a user. `/budget` is what the operator compares with the declared limits.
"""

import uuid
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from plimsoll_runtime.admission.admit import tightest
from plimsoll_runtime.admission.checks import CheckedFields
from plimsoll_runtime.contract import endpoints
from plimsoll_runtime.refusal import Refusal
from plimsoll_runtime.request import ChatPrompt, GenerationRequest, TextPrompt, TokenPrompt
from plimsoll_runtime.routes.dialect import Dialect
from plimsoll_runtime.routes.errors import error_body, error_response, error_status
from plimsoll_runtime.routes.front import Front
from plimsoll_runtime.routes.intake import ClientDisconnect, read_object
from plimsoll_runtime.routes.messages import to_count_request
from plimsoll_runtime.service import Service

GONE = 499
NOT_LOADED = {"status": "loading"}


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
        return JSONResponse({"status": status}, 503, headers={"retry-after": "5"})

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
                "offload": {"mode": "none"},
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
        return JSONResponse({"object": "list", "data": [self._model(service)]})

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
        return await self._answer(request, endpoints.DECIDE_BUDGET, self._decide)

    async def count_tokens(self, request: Request) -> Response:
        return await self._answer(request, endpoints.COUNT_TOKENS, self._count)

    async def tokenize(self, request: Request) -> Response:
        return await self._answer(request, endpoints.TOKENIZE, self._tokenize)

    async def detokenize(self, request: Request) -> Response:
        return await self._answer(request, endpoints.DETOKENIZE, self._detokenize)

    async def _answer(self, request: Request, path: str, answer: Any) -> Response:
        try:
            body = await read_object(request, self._front.config.max_body_bytes)
        except ClientDisconnect:
            return Response(status_code=GONE)
        service = self._front.loaded()
        if isinstance(body, dict) and isinstance(service, Service):
            result = await answer(body, request, service)
        else:
            result = body if isinstance(body, Refusal) else service
        return self._refused(result, path) if isinstance(result, Refusal) else JSONResponse(result)

    async def _decide(self, body: dict[str, Any], request: Request, service: Service) -> dict[str, Any] | Refusal:
        route, inner = body.get("route"), body.get("request")
        dialect = self._dialects.get(route) if isinstance(route, str) else None
        if dialect is None or not isinstance(route, str):
            known = ", ".join(self._dialects)
            return Refusal(code="invalid_value", message=f"route must be one of {known}", param="route")
        if not isinstance(inner, dict):
            return Refusal(code="invalid_type", message="request must be the body of that route", param="request")
        parsed = dialect.to_request(inner, request.headers)
        decision = parsed if isinstance(parsed, Refusal) else await service.decide(parsed)
        if isinstance(decision, Refusal):
            request_id = uuid.uuid4().hex
            error = error_body(decision, route, request_id)
            return {"admitted": False, "status": error_status(decision, route), "error": error}
        budget = tightest(decision.prompts)
        return {
            "admitted": True,
            "prompt_tokens": sum(prompt.budget.prompt_tokens for prompt in decision.prompts),
            "requested_output_tokens": budget.requested_output_tokens,
            "max_output_tokens": budget.max_output_tokens,
            "limited_by": budget.limited_by,
            "context_length": budget.context_length,
        }

    async def _count(self, body: dict[str, Any], request: Request, service: Service) -> dict[str, Any] | Refusal:
        parsed = to_count_request(body, request.headers)
        if isinstance(parsed, Refusal):
            return parsed
        checked = service.admission.check(parsed)
        if not isinstance(checked, CheckedFields):
            return checked
        counted = await service.count(parsed)
        return counted if isinstance(counted, Refusal) else {"input_tokens": sum(map(len, counted))}

    async def _tokenize(self, body: dict[str, Any], request: Request, service: Service) -> dict[str, Any] | Refusal:
        prompt = _prompt_to_count(body)
        if isinstance(prompt, Refusal):
            return prompt
        asked = GenerationRequest(endpoints.COMPLETIONS, self._front.served_name, "prompt", (prompt,))
        counted = await service.count(asked)
        if isinstance(counted, Refusal):
            return counted
        limit = service.admission.limits.context_length
        return {"tokens": counted[0], "count": len(counted[0]), "max_model_len": limit}

    async def _detokenize(self, body: dict[str, Any], request: Request, service: Service) -> dict[str, Any] | Refusal:
        token_ids = body.get("tokens")
        if not isinstance(token_ids, list):
            return Refusal(code="invalid_type", message="tokens must be a list of token ids", param="tokens")
        prompt = TokenPrompt(tuple(token_ids))
        asked = GenerationRequest(endpoints.COMPLETIONS, self._front.served_name, "tokens", (prompt,))
        counted = await service.count(asked)
        if isinstance(counted, Refusal):
            return counted
        return {"prompt": service.text.tokenizer.decode(counted[0])}

    def _model(self, service: Service) -> dict[str, Any]:
        limits = service.admission.limits
        return {
            "id": self._front.served_name,
            "object": "model",
            "created": 0,
            "owned_by": "plimsoll",
            "context_length": limits.context_length,
            "max_model_len": limits.context_length,
            "max_output_default": limits.max_output_default,
            "max_output_limit": limits.max_output_limit,
        }

    def _refused(self, refusal: Refusal, path: str) -> Response:
        self._front.meters.refused(path, refusal.code)
        return error_response(refusal, path, uuid.uuid4().hex)


def _prompt_to_count(body: dict[str, Any]) -> ChatPrompt | TextPrompt | Refusal:
    """`prompt` is text as `/v1/completions` takes it."""
    text = body.get("prompt")
    if not isinstance(text, str):
        return Refusal(code="invalid_type", message="prompt must be a string", param="prompt")
    return TextPrompt(text)
