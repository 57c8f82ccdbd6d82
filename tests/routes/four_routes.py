"""The four generation routes as one table, for tests that ask all of them the same thing and compare the refusals."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest

from doubles.server import MODEL
from plimsoll_runtime.contract import endpoints

ROUTES = endpoints.GENERATION_ROUTES
CHAT, COMPLETIONS, MESSAGES, RESPONSES = ROUTES
_CONVERSATION = {"messages": [{"role": "user", "content": "hi"}]}

PROMPT: Mapping[str, dict[str, Any]] = {
    CHAT: _CONVERSATION,
    COMPLETIONS: {"prompt": "hi"},
    MESSAGES: _CONVERSATION,
    RESPONSES: {"input": "hi"},
}
PROMPT_PARAM: Mapping[str, str] = {CHAT: "messages", COMPLETIONS: "prompt", MESSAGES: "messages", RESPONSES: "input"}
LIMIT: Mapping[str, str] = {
    CHAT: "max_completion_tokens",
    COMPLETIONS: "max_tokens",
    MESSAGES: "max_tokens",
    RESPONSES: "max_output_tokens",
}
STOP: Mapping[str, str] = {route: "stop_sequences" if route == MESSAGES else "stop" for route in ROUTES}

ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    500: "api_error",
    529: "overloaded_error",
}
OPENAI_TYPES = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error", 503: "server_error"}
"""All other statuses have the type `invalid_request_error`."""

JSON = {"content-type": "application/json"}
streamed_or_not = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
every_route = pytest.mark.parametrize("route", ROUTES, ids=["chat", "completions", "messages", "responses"])


def name_of(route: str) -> str:
    """A short name of a route, for the id of a test."""
    return "chat" if route == CHAT else route.rpartition("/")[2]


def on_route(name: str, route: str) -> str:
    """The route's own name of a field that has a different one on each."""
    return {"LIMIT": LIMIT[route], "STOP": STOP[route]}.get(name, name)


def body_of(route: str, fields: Mapping[str, Any] | None = None, *, stream: bool = False) -> dict[str, Any]:
    """A short valid request with `fields`; the names LIMIT and STOP stand for the route's own."""
    body: dict[str, Any] = {"model": MODEL, **PROMPT[route], LIMIT[route]: 2, "ignore_eos": True}
    body |= {on_route(name, route): value for name, value in (fields or {}).items()}
    return body | ({"stream": True} if stream else {})


def raw_body_of(route: str, raw_field: str, *, stream: bool = False) -> bytes:
    """A valid request whose text ends with one more field, written as the test writes it."""
    named = raw_field.replace("LIMIT", LIMIT[route]).replace("STOP", STOP[route])
    name = named.partition(":")[0].strip('" ')
    whole = {key: value for key, value in body_of(route, stream=stream).items() if key != name}
    return f"{json.dumps(whole)[:-1]}, {named}}}".encode()


def ask(
    client: httpx.Client, route: str, fields: Mapping[str, Any] | None = None, *, stream: bool = False
) -> httpx.Response:
    return client.post(route, json=body_of(route, fields, stream=stream))


def send(client: httpx.Client, route: str, body: bytes | Iterator[bytes], **headers: str) -> httpx.Response:
    return client.post(route, content=body, headers=JSON | headers)


def refused_alike(client: httpx.Client, route: str, fields: Mapping[str, Any], status: int = 400) -> dict[str, Any]:
    """The `error` object of a request that is refused, plain and streamed, with the same status and body (B45)."""
    plain = error_of(ask(client, route, fields), route, status)
    if "stream" not in fields:
        assert error_of(ask(client, route, fields, stream=True), route, status) == plain
    return plain


def is_anthropic(path: str) -> bool:
    return path == MESSAGES or path.startswith(MESSAGES + "/")


def error_of(response: httpx.Response, route: str, status: int, param: str | None = None) -> dict[str, Any]:
    """The `error` object, once status and shape are those of the route's own API."""
    assert response.status_code == status, f"{response.request.content[:300]!r}: {response.text[:300]}"
    assert response.headers["content-type"] == "application/json"
    assert endpoints.HEADER_MAX_OUTPUT_TOKENS not in response.headers
    body = json.loads(response.text, parse_constant=_no_such_constant)
    error: dict[str, Any] = body["error"]
    assert error["message"]
    if is_anthropic(route):
        assert set(body) == {"type", "error", "request_id"}
        assert (body["type"], error["type"]) == ("error", ANTHROPIC_TYPES[status])
        assert response.headers["request-id"] == body["request_id"]
        assert param is None or param in error["message"]
        return error
    assert set(body) == {"error"}
    assert {"message", "type", "param", "code"} <= set(error)
    assert error["type"] == OPENAI_TYPES.get(status, "invalid_request_error")
    assert isinstance(error["code"], str)
    assert param is None or error["param"] == param
    return error


def _no_such_constant(name: str) -> Any:
    raise AssertionError(f"{name} is not JSON")
