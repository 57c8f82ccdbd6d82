"""`GET` and `DELETE /v1/responses/{response_id}`: the routes that read what `/v1/responses` stored.

In: ASGI requests. Out: stored response objects, each only to the tenant that made it; an unknown or expired id is 404.
It stores nothing (responses_memory.py does).
"""

import uuid

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from plimsoll_runtime.contract import endpoints
from plimsoll_runtime.refusal import Refusal
from plimsoll_runtime.routes.errors import error_response
from plimsoll_runtime.routes.response_store import ResponseStore


class StoredResponses:
    """Both methods over one store."""

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
