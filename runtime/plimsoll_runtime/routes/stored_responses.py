"""The stored answers of `/v1/responses` as the app uses them: memory for the handler, and the routes that read it.

Owns the binding of one `ResponseStore` to a server. In: requests and answers. Out: stored response objects, each only
to the tenant that made it; an unknown or expired id is 404.
"""

import uuid
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from plimsoll_runtime.contract import endpoints
from plimsoll_runtime.refusal import Refusal
from plimsoll_runtime.request import GenerationRequest
from plimsoll_runtime.routes import responses_memory
from plimsoll_runtime.routes.dialect import Answer
from plimsoll_runtime.routes.errors import error_response
from plimsoll_runtime.routes.response_store import ResponseStore


class ResponsesMemory:
    """What the generation handler asks (generate.Memory)."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    def resolve(self, request: GenerationRequest, tenant: str) -> GenerationRequest | Refusal:
        return responses_memory.resolve_previous(request, self._store, tenant)

    def keeps(self, request: GenerationRequest) -> bool:
        return bool(request.dialect_options["store"])

    def remember(self, request: GenerationRequest, tenant: str, answer: Answer, body: dict[str, Any]) -> None:
        responses_memory.remember(self._store, tenant, request, answer, body)


class StoredResponses:
    """`GET` and `DELETE /v1/responses/{response_id}`."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def get_or_delete(self, request: Request) -> Response:
        """Both methods of the path: one route, so that a wrong method is told of both."""
        return await (self.delete(request) if request.method == "DELETE" else self.get(request))

    async def get(self, request: Request) -> Response:
        response_id = request.path_params["response_id"]
        stored = self._store.response(request.scope["tenant"], response_id)
        return _unknown(response_id) if stored is None else JSONResponse(stored)

    async def delete(self, request: Request) -> Response:
        response_id = request.path_params["response_id"]
        if not self._store.delete(request.scope["tenant"], response_id):
            return _unknown(response_id)
        return JSONResponse({"id": response_id, "object": "response", "deleted": True})


def _unknown(response_id: str) -> Response:
    refusal = Refusal(
        code="not_found",
        message=f"there is no stored response {response_id[:80]!r}: it was not stored, or its time is over",
        param="response_id",
    )
    return error_response(refusal, endpoints.RESPONSES, uuid.uuid4().hex)
