"""The four generation routes as one table, for tests that ask all of them the same thing and compare the refusals."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from doubles.server import MODEL
from plimsoll_runtime.contract import endpoints

ROUTES = endpoints.GENERATION_ROUTES
CHAT, COMPLETIONS, MESSAGES, RESPONSES = ROUTES


@dataclass(frozen=True)
class Ask:
    """How one route is asked for a text, and where its plain answer says what."""

    prompt_param: str
    limit_field: str
    stop_field: str
    body: Callable[[str], dict[str, Any]]
    output_tokens: Callable[[dict[str, Any]], int]
    reason: Callable[[dict[str, Any]], Any]
    length_reason: Callable[[str], Any]


def _conversation(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


ASK: Mapping[str, Ask] = {
    CHAT: Ask(
        "messages",
        "max_completion_tokens",
        "stop",
        _conversation,
        lambda body: body["usage"]["completion_tokens"],
        lambda body: body["choices"][0]["finish_reason"],
        lambda limited_by: "length",
    ),
    COMPLETIONS: Ask(
        "prompt",
        "max_tokens",
        "stop",
        lambda text: {"prompt": text},
        lambda body: body["usage"]["completion_tokens"],
        lambda body: body["choices"][0]["finish_reason"],
        lambda limited_by: "length",
    ),
    MESSAGES: Ask(
        "messages",
        "max_tokens",
        "stop_sequences",
        _conversation,
        lambda body: body["usage"]["output_tokens"],
        lambda body: body["stop_reason"],
        lambda limited_by: "model_context_window_exceeded" if limited_by == "context" else "max_tokens",
    ),
    RESPONSES: Ask(
        "input",
        "max_output_tokens",
        "stop",
        lambda text: {"input": text},
        lambda body: body["usage"]["output_tokens"],
        lambda body: (body["status"], body["incomplete_details"]),
        lambda limited_by: ("incomplete", {"reason": "max_output_tokens"}),
    ),
}

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
    return {"LIMIT": ASK[route].limit_field, "STOP": ASK[route].stop_field}.get(name, name)


def body_of(route: str, fields: Mapping[str, Any] | None = None, *, stream: bool = False) -> dict[str, Any]:
    """A short valid request with `fields`; the names LIMIT and STOP stand for the route's own."""
    body: dict[str, Any] = {"model": MODEL, **ASK[route].body("hi"), on_route("LIMIT", route): 2, "ignore_eos": True}
    body |= {on_route(name, route): value for name, value in (fields or {}).items()}
    return body | ({"stream": True} if stream else {})


def raw_body_of(route: str, raw_field: str, *, stream: bool = False) -> bytes:
    """A valid request whose text ends with one more field, written as the test writes it."""
    named = raw_field.replace("LIMIT", on_route("LIMIT", route)).replace("STOP", on_route("STOP", route))
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
