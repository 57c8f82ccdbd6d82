"""What is wrong before a dialect is asked: bytes that are no JSON, media types, methods, sizes and slow clients.

The servers here are whole ones, and where a client library would correct the fault the test writes to the socket.
"""

import asyncio
import contextlib
import gzip
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from doubles.server import ScriptedServer, scripted_server, wait_until
from plimsoll_runtime.contract import endpoints
from plimsoll_runtime.routes import intake
from plimsoll_runtime.routes.app import DIALECTS
from plimsoll_runtime.text import stop_strings
from routes.four_routes import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    ROUTES,
    ask,
    body_of,
    error_of,
    every_route,
    is_anthropic,
    raw_body_of,
    send,
)
from routes.raw_http import all_of, begun_post

MAX_BODY_BYTES = 1024 * 1024
POSTS = (*ROUTES, endpoints.COUNT_TOKENS, endpoints.DECIDE_BUDGET, endpoints.TOKENIZE, endpoints.DETOKENIZE)
every_post = pytest.mark.parametrize("path", POSTS)


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with scripted_server(max_body_bytes=MAX_BODY_BYTES) as server:
        yield server


def _deep(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


NOT_AN_OBJECT: dict[str, bytes] = {
    "B135-list": b"[]",
    "B135-null": b"null",
    "B135-number": b"123",
    "B135-string": b'"x"',
    "B135-empty": b"",
    "B135-space": b"  \n",
    "B135-truncated": b'{"a":',
    "B135-trailing": b'{"a": 1} x',
    "B135-two": b"{}{}",
    "B135-nested-lists": b"[" * 100_000,
    "B135-nested-objects": b'{"a":' * 100_000,
    "B135-deep-but-whole": _deep(900).encode(),
    "B135-duplicate-key": b'{"model": "scripted", "model": "other"}',
    "B135-comment": b'{"a": 1 /* x */}',
    "B135-control-character": b'{"a": "\n"}',
    "B59-utf-16": json.dumps({"model": "scripted"}).encode("utf-16"),
    "B59-bom": b"\xef\xbb\xbf{}",
    "B59-latin-1": '{"model": "é"}'.encode("latin-1"),
    "B59-surrogate-bytes": b'{"model": "\xed\xa0\xbd"}',
    "B59-nul-bytes": b"\x00" * 64,
}


@every_post
def test_what_is_no_json_object_is_400(server: ScriptedServer, path: str) -> None:
    """B135: 500, or an error in the framework's own shape. A body that is not UTF-8 was a 500, too.

    deep-but-whole: walking a body of 900 levels exhausted the stack after it had been parsed, which was a 500.
    """
    for case, body in NOT_AN_OBJECT.items():
        error = error_of(send(server.client, path, body), path, 400)
        assert is_anthropic(path) or error["code"] in {"invalid_json", "invalid_type"}, case


# One more field, as it is written
WRONG_TEXTS: dict[str, str] = {
    **{f"B28-{field}-{value}": f'"{field}": {value}'
       for field in ("temperature", "top_p", "min_p", "presence_penalty", "LIMIT")
       for value in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", '"nan"')},
    "B28-unread-field": '"unknown": [{"x": 1e999}]',
    "B28-echoed-field": '"reasoning": {"effort": null, "x": 1e999}',
    "B07-digits": '"seed": ' + "9" * 5000,
    "B59-surrogate-model": '"model": "\\ud83d"',
    "B59-surrogate-stop": '"STOP": ["\\ude00 x"]',
    "B59-surrogate-unread": '"unknown": {"\\ud83d": 1}',
    "B59-surrogate-prompt": '"prompt": "emoji \\ud83d"',
    "B59-surrogate-messages": '"messages": [{"role": "user", "content": "emoji \\ud83d"}]',
    "B59-surrogate-system": '"system": "\\udfff"',
    "B59-surrogate-instructions": '"instructions": "\\udfff"',
    "B59-surrogate-input": '"input": "\\ud83d\\ud83d\\ude00"',
    "B59-surrogate-tool": '"tools": [{"type": "function", "function": {"name": "f", "description": "\\ud83d"}}]',
    "B135-deep-field": f'"chat_template_kwargs": {_deep(200)}',
    "B135-deep-unread": f'"unknown": {_deep(200)}, "user": "\\ud83d\\ude00"',
    "B135-duplicate": '"x": {"y": 1, "y": 2}',
}  # fmt: skip


@every_route
def test_a_body_with_one_wrong_value_is_400_and_the_error_is_json(server: ScriptedServer, route: str) -> None:
    """B28: NaN passed the range checks, and then its own error reply could not be written.

    echoed-field: an infinite number in a field that responses repeats was computed for, and then was a 500.
    """
    for case, raw in WRONG_TEXTS.items():
        plain = error_of(send(server.client, route, raw_body_of(route, raw)), route, 400)
        assert error_of(send(server.client, route, raw_body_of(route, raw, stream=True)), route, 400) == plain, case
    assert ask(server.client, route).status_code == 200


@every_route
def test_a_valid_pair_is_no_surrogate(server: ScriptedServer, route: str) -> None:
    """B59: and what is refused above is accepted when both halves are there, up to the deepest nesting."""
    for raw in ('"STOP": ["\\ud83d\\ude00"]', f'"unknown": {_deep(100)}, "y": "\\ud83d\\ude00"'):
        assert send(server.client, route, raw_body_of(route, raw)).status_code == 200


MEDIA_TYPES: dict[str | None, int] = {
    "application/json": 200,
    "APPLICATION/JSON": 200,
    "application/json;": 200,
    "application/json; charset=utf-8": 200,
    'application/json; charset="UTF-8"; odata=verbose': 200,
    "application/json; charset=latin1": 415,
    "application/json, text/plain": 415,
    "text/plain": 415,
    "application/x-www-form-urlencoded": 415,
    "multipart/form-data; boundary=x": 415,
    "": 415,
    None: 415,
}


@every_route
def test_the_media_type_is_json_in_utf_8(server: ScriptedServer, route: str) -> None:
    """B135: a page of another site can send text/plain without being asked. Parameters besides charset mean nothing."""
    content = json.dumps(body_of(route)).encode()
    for media_type, status in MEDIA_TYPES.items():
        headers = {} if media_type is None else {"content-type": media_type}
        response = server.client.post(route, content=content, headers=headers)
        assert response.status_code == status, media_type
        if status != 200:
            error_of(response, route, status)


@every_route
def test_a_compressed_body_is_refused_and_chunks_are_fine(server: ScriptedServer, route: str) -> None:
    """B135: a small compressed body can be a large one."""
    content = json.dumps(body_of(route)).encode()
    for coding in ("gzip", "br", "identity, gzip"):
        error_of(send(server.client, route, gzip.compress(content), **{"content-encoding": coding}), route, 415)
    assert send(server.client, route, content, **{"content-encoding": "identity"}).status_code == 200
    assert send(server.client, route, iter([content[:9], content[9:]])).status_code == 200


METHODS: dict[str, set[str]] = {
    **{path: {"POST"} for path in POSTS},
    endpoints.MODELS: {"GET", "HEAD"},
    endpoints.MODELS + "/x": {"GET", "HEAD"},
    endpoints.RESPONSES + "/resp_x": {"GET", "HEAD", "DELETE"},
    endpoints.BUDGET: {"GET", "HEAD"},
    endpoints.LIVEZ: {"GET", "HEAD"},
    endpoints.READYZ: {"GET", "HEAD"},
    endpoints.HEALTH: {"GET", "HEAD"},
    endpoints.METRICS: {"GET", "HEAD"},
}


@pytest.mark.parametrize("path", METHODS)
def test_another_method_is_405_and_says_which_is_right(server: ScriptedServer, path: str) -> None:
    """B135: on the path of a stored response only one of its two methods was named."""
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"} - METHODS[path]:
        response = server.client.request(method, path)
        error_of(response, path, 405)
        assert set(response.headers["allow"].split(", ")) == METHODS[path]
    if "HEAD" not in METHODS[path]:
        assert server.client.head(path).status_code == 405


@pytest.mark.parametrize(
    "path",
    ["/", "/nope", "/v1", "/V1/models", "/v1/chat/completions/", "/v1/messages/", "/v1/messages/none", "/v1/messagesx",
     "/v1/responses/a/b", "/openapi.json", "/docs", "/%ED%A0%80", "/%00%ff", "/v1/..%2fmodels", "/" + "x" * 5000],
)  # fmt: skip
def test_an_unknown_path_is_404_in_its_dialect(server: ScriptedServer, path: str) -> None:
    """B135. The API's documents are elsewhere, so the framework's own pages are not served."""
    for method in ("GET", "POST"):
        error = error_of(server.client.request(method, path), path, 404)
        assert is_anthropic(path) or error["code"] == "not_found"
        assert len(error["message"]) < 300


@pytest.mark.parametrize("name", ["other", "x" * 100_000, "\x00", "ü\n", "../../etc/passwd", "SCRIPTED", "scripted "])
@every_route
def test_an_unknown_model_is_404_in_its_dialect(server: ScriptedServer, route: str, name: str) -> None:
    """B135: and an endless name is not repeated in full."""
    error = error_of(ask(server.client, route, {"model": name}), route, 404, "model")
    assert route == MESSAGES or error["code"] == "model_not_found"
    assert len(error["message"]) < 300


@every_post
def test_a_large_body_is_413_before_it_is_read(server: ScriptedServer, path: str) -> None:
    """B136: 27 MB were templated before any check. Nothing of a declared gigabyte is read, and chunks only so far."""
    with begun_post(server, path, "content-length: 1000000000") as connected:
        connected.sendall(b"{")
        _assert_refused(connected, path, 413)
    with begun_post(server, path, "transfer-encoding: chunked") as connected:
        chunk = b"40000\r\n" + b" " * 0x40000 + b"\r\n"
        with contextlib.suppress(ConnectionError):  # the server stopped listening in the middle of one
            for _ in range(2 * MAX_BODY_BYTES // 0x40000):
                connected.sendall(chunk)
        _assert_refused(connected, path, 413)


@every_post
def test_a_slow_body_is_408(server: ScriptedServer, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """B136: one byte a second held a connection for ever."""
    monkeypatch.setattr(intake, "BODY_SECONDS", 0.05)
    with begun_post(server, path, "content-length: 100") as connected:
        connected.sendall(b"{")
        _assert_refused(connected, path, 408)


MANY: list[tuple[str, dict[str, Any]]] = [
    *[(route, {"messages": [{"role": "user", "content": "x"}] * 10_000}) for route in (CHAT, MESSAGES)],
    (RESPONSES, {"input": [{"role": "user", "content": "x"}] * 10_000}),
    *[(route, {"tools": [{"type": "function", "name": "f"}] * 5_000}) for route in ROUTES],
    (COMPLETIONS, {"prompt": ["x"] * 10_000}),
    (COMPLETIONS, {"prompt": [1] * 100_000}),
    *[(route, {"STOP": ["a" * 60_000] * 4}) for route in ROUTES],
    *[(route, {"logit_bias": {str(number): 1 for number in range(5_000)}}) for route in ROUTES],
]


def test_much_of_anything_is_400(server: ScriptedServer) -> None:
    """B136: 10,000 messages and 5,000 tools. Four long stop strings with n 128 held the event loop for 20 seconds."""
    steps = server.runner.num_steps
    for route, fields in MANY:
        error_of(ask(server.client, route, fields), route, 400)
    assert server.runner.num_steps == steps


def test_long_stop_strings_are_prepared_once_for_all_choices(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B136: each of 128 choices prepared them for itself, on the event loop."""
    prepared: list[str] = []
    prepare = stop_strings._fallbacks

    def noting(stop: str) -> list[int]:
        prepared.append(stop)
        return prepare(stop)

    monkeypatch.setattr(stop_strings, "_fallbacks", noting)
    stop = "x" * 65_536
    assert ask(server.client, COMPLETIONS, {"n": 16, "STOP": stop, "LIMIT": 1}).status_code == 200
    assert prepared == [stop]


def test_a_large_body_is_converted_off_the_event_loop(server: ScriptedServer) -> None:
    """B23: messages were parsed in a thread, and then converted on the event loop, which stood still meanwhile."""
    on_the_loop: list[bool] = []
    with pytest.MonkeyPatch.context() as patch:
        for dialect in DIALECTS.values():
            patch.setattr(dialect, "to_request", _noting_loop(dialect.to_request, on_the_loop), raising=False)
        for route in ROUTES:
            ask(server.client, route, {"unknown": "x" * intake.LARGE_BODY_BYTES})
    assert on_the_loop == [False] * len(ROUTES)


def _noting_loop(convert: Any, on_the_loop: list[bool]) -> Any:
    def noting(*arguments: Any) -> Any:
        on_the_loop.append(asyncio._get_running_loop() is not None)
        return convert(*arguments)

    return noting


def test_a_client_that_leaves_in_its_body_leaves_nothing(server: ScriptedServer) -> None:
    """The place in the house is taken after the body, so half a body takes none."""
    for path in POSTS:
        with begun_post(server, path, "content-length: 100") as connected:
            connected.sendall(b"{")
    assert server.front.service is not None
    house = server.front.service.house
    wait_until(lambda: house.inside == 0)
    assert ask(server.client, CHAT).status_code == 200


def _assert_refused(connected: socket.socket, path: str, status: int) -> None:
    """One whole answer in the path's dialect, and then the end of the connection."""
    head, _, body = all_of(connected).partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode()), head
    assert b"connection: close" in head
    error = json.loads(body)["error"]
    if is_anthropic(path):
        assert error["type"] == ("request_too_large" if status == 413 else "invalid_request_error")
    else:
        assert error["code"] == ("request_too_large" if status == 413 else "request_timeout")
