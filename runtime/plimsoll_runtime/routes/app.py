"""The HTTP application: every path of the server and what answers it.

Owns the table of routes, and the answers to paths and methods that are not in it. In: a `Front`. Out: an ASGI app. A
generation route is a dialect plus the one handler; the every-route test takes its routes from here.
"""

import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from plimsoll_runtime.contract import endpoints
from plimsoll_runtime.refusal import Refusal, RefusalCode
from plimsoll_runtime.routes.chat_completions import CHAT_COMPLETIONS
from plimsoll_runtime.routes.completions import COMPLETIONS
from plimsoll_runtime.routes.dialect import Dialect
from plimsoll_runtime.routes.errors import error_response
from plimsoll_runtime.routes.front import Front
from plimsoll_runtime.routes.generate import GenerationHandler
from plimsoll_runtime.routes.information import Information
from plimsoll_runtime.routes.keys import KeyFile, KeyMiddleware
from plimsoll_runtime.routes.messages import MESSAGES
from plimsoll_runtime.routes.messages_answer import PING
from plimsoll_runtime.routes.paths import route_label
from plimsoll_runtime.routes.responses import RESPONSES
from plimsoll_runtime.routes.responses_memory import ResponsesMemory
from plimsoll_runtime.routes.stored_responses import StoredResponses

DIALECTS: Final[Mapping[str, Dialect]] = MappingProxyType(
    {dialect.route: dialect for dialect in (CHAT_COMPLETIONS, COMPLETIONS, MESSAGES, RESPONSES)}
)
_LOG = logging.getLogger("plimsoll")


def build_app(front: Front) -> FastAPI:
    """The app over one server's state. Raises ValueError for a key file that cannot be used."""
    app = FastAPI(title="Plimsoll", openapi_url=None, redirect_slashes=False)
    _add_generation(app, front)
    _add_information(app, front)
    app.add_exception_handler(HTTPException, _http_error(front))
    app.add_exception_handler(Exception, _unexpected)
    keys = None if front.config.api_key_file is None else KeyFile(Path(front.config.api_key_file))
    app.add_middleware(KeyMiddleware, keys=keys, meters=front.meters)
    return app


def _add_generation(app: FastAPI, front: Front) -> None:
    for route, dialect in DIALECTS.items():
        handler = GenerationHandler(
            front,
            dialect,
            ping=PING if route == endpoints.MESSAGES else None,
            memory=ResponsesMemory(front.store) if route == endpoints.RESPONSES else None,
        )
        app.add_route(route, _endpoint(handler), methods=["POST"])


def _endpoint(handler: GenerationHandler) -> Callable[[Request], Awaitable[Response]]:
    """Starlette takes a function for a route; any other callable it would call as an ASGI app."""

    async def generate(request: Request) -> Response:
        return await handler(request)

    return generate


def _add_information(app: FastAPI, front: Front) -> None:
    information = Information(front, DIALECTS)
    stored = StoredResponses(front.store)
    app.add_route(endpoints.MODELS, information.models, methods=["GET"])
    app.add_route(endpoints.MODELS + "/{model:path}", information.model, methods=["GET"])
    app.add_route(endpoints.RESPONSES + "/{response_id}", stored.get_or_delete, methods=["GET", "DELETE"])
    app.add_route(endpoints.COUNT_TOKENS, information.count_tokens, methods=["POST"])
    app.add_route(endpoints.TOKENIZE, information.tokenize, methods=["POST"])
    app.add_route(endpoints.DETOKENIZE, information.detokenize, methods=["POST"])
    app.add_route(endpoints.DECIDE_BUDGET, information.decide_budget, methods=["POST"])
    app.add_route(endpoints.BUDGET, information.budget, methods=["GET"])
    app.add_route(endpoints.LIVEZ, information.livez, methods=["GET"])
    app.add_route(endpoints.READYZ, information.readyz, methods=["GET"])
    app.add_route(endpoints.HEALTH, information.readyz, methods=["GET"])
    app.add_route(endpoints.METRICS, information.metrics, methods=["GET"])


def _http_error(front: Front) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        allow = (error.headers or {}).get("Allow")
        path = request.url.path
        code: RefusalCode = "method_not_allowed" if error.status_code == 405 else "not_found"
        message = (
            f"{request.method} is not allowed here: use {allow}" if allow else f"there is nothing at {path[:200]!r}"
        )
        front.meters.refused(route_label(path), code)
        return error_response(Refusal(code=code, message=message, allow=allow), path, uuid.uuid4().hex)

    return answer


async def _unexpected(request: Request, error: Exception) -> Response:
    """A fault of ours: the client is told in its dialect, the log has the rest."""
    _LOG.error("a request failed unexpectedly", exc_info=error)
    refusal = Refusal(code="engine_failure", message="the server failed to handle this request")
    return error_response(refusal, request.url.path, uuid.uuid4().hex)
