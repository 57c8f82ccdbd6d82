"""API keys: who is let in, on which paths, and where a key can be seen (nowhere).

B131: a key guarded some routes of other servers and not the others. So the routes come from the app itself, and every
path that is not a probe must ask, existing or not.
"""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.routing import Route
from starlette.types import Message

from doubles.server import ScriptedServer, scripted_server
from plimsoll_runtime.__main__ import new_front, serve
from plimsoll_runtime.contract import endpoints
from plimsoll_runtime.contract.config import RuntimeConfig
from plimsoll_runtime.meters import Meters
from plimsoll_runtime.routes.app import build_app
from plimsoll_runtime.routes.keys import KeyFile, KeyMiddleware
from routes.four_routes import CHAT, RESPONSES, ROUTES, ask, body_of, error_of, every_route, send

KEY, OTHER_KEY, WRONG = "sk-right-0123456789", "sk-other-9876543210", "sk-wrong-5555555555"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(f"{KEY}\n\n  {OTHER_KEY}  \n")
    return path


@pytest.fixture(scope="module")
def server(key_file: Path) -> Iterator[ScriptedServer]:
    with scripted_server(api_key_file=str(key_file)) as server:
        yield server


def _paths_of_the_app() -> list[str]:
    app = build_app(new_front(RuntimeConfig(model="file:///none")))
    paths = {route.path for route in app.routes if isinstance(route, Route)}
    return sorted(path.replace("{response_id}", "resp_1").replace("{model:path}", "scripted") for path in paths)


def test_the_paths_are_those_of_the_app() -> None:
    assert endpoints.WITHOUT_KEY | set(ROUTES) | {endpoints.DECIDE_BUDGET} <= set(_paths_of_the_app())


@pytest.mark.parametrize("path", _paths_of_the_app())
def test_every_path_but_the_probes_asks_for_a_key(server: ScriptedServer, path: str) -> None:
    """B131. Odd spellings of a probe's path are other paths."""
    for method in METHODS:
        response = server.client.request(method, path)
        if path in endpoints.WITHOUT_KEY:
            assert response.status_code != 401
        elif method == "HEAD":
            assert response.status_code == 401
        else:
            assert error_of(response, path, 401)
    for odd in (f"{path}/", path.upper(), f"{path}%2f", f"{path}/..", f"/x/%2e%2e{path}", f"{path};x", f"{path}%00"):
        assert server.client.get(odd).status_code == 401, odd


@pytest.mark.parametrize("path", ["/", "/none", "/v1", "/v2/models", "/docs", "/openapi.json", "/v1/embeddings"])
def test_unknown_paths_ask_too(server: ScriptedServer, path: str) -> None:
    """B131: denied by default, so that a new route is covered before it is written."""
    assert error_of(server.client.get(path), path, 401)["code"] == "invalid_api_key"
    assert server.client.get(path, headers={"x-api-key": KEY}).status_code == 404


WRONG_CREDENTIALS: dict[str, dict[str, str]] = {
    "none": {},
    "wrong": {"authorization": f"Bearer {WRONG}"},
    "wrong-x": {"x-api-key": WRONG},
    "empty": {"authorization": "Bearer"},
    "empty-x": {"x-api-key": ""},
    "scheme": {"authorization": f"Basic {KEY}"},
    "no-scheme": {"authorization": KEY},
    "no-space": {"authorization": f"Bearer{KEY}"},
    "two-keys": {"authorization": f"Bearer {KEY} {OTHER_KEY}"},
    "comma": {"authorization": f"Bearer {KEY},{OTHER_KEY}"},
    "prefix": {"x-api-key": KEY[:-1]},
    "longer": {"x-api-key": KEY + "0"},
    "case": {"x-api-key": KEY.upper()},
    "both-lines": {"x-api-key": f"{KEY}%0a{OTHER_KEY}"},
    "other-header": {"api-key": KEY, "cookie": f"key={KEY}"},
}


@every_route
@pytest.mark.parametrize("headers", WRONG_CREDENTIALS.values(), ids=WRONG_CREDENTIALS)
def test_a_wrong_key_is_401_in_the_dialect_and_costs_nothing(
    server: ScriptedServer, route: str, headers: dict[str, str]
) -> None:
    """B131, B45: and the body is not looked at, however broken it is."""
    steps = server.runner.num_steps
    first = error_of(server.client.post(route, json=body_of(route), headers=headers), route, 401)
    assert error_of(server.client.post(route, json=body_of(route, stream=True), headers=headers), route, 401) == first
    assert error_of(server.client.post(route, content=b"{", headers=headers), route, 401) == first
    assert server.runner.num_steps == steps
    assert not any(key in first["message"] for key in (KEY, OTHER_KEY, WRONG))


RIGHT_CREDENTIALS: dict[str, dict[str, str]] = {
    "bearer": {"authorization": f"Bearer {KEY}"},
    "lower": {"authorization": f"bearer {KEY}"},
    "upper": {"authorization": f"BEARER {KEY}"},
    "spaces": {"authorization": f"Bearer    {KEY}"},
    "x-api-key": {"x-api-key": KEY},
    "second-key": {"x-api-key": OTHER_KEY},
    "beside-another-scheme": {"authorization": "Basic eDp5", "x-api-key": KEY},
    "beside-an-empty-bearer": {"authorization": "Bearer", "x-api-key": KEY},
}


@every_route
def test_a_key_is_taken_in_both_styles_on_every_route(server: ScriptedServer, route: str) -> None:
    """B131: `messages` clients send x-api-key, or a bearer since their version 2."""
    for case, headers in RIGHT_CREDENTIALS.items():
        assert server.client.post(route, json=body_of(route), headers=headers).status_code == 200, case


async def test_a_websocket_is_closed_before_any_route(key_file: Path) -> None:
    """B131: the middleware let everything pass that was not plain HTTP."""
    sent: list[Message] = []

    async def open_to_all(*_: object) -> None:
        raise AssertionError("a websocket reached the routes without a key")

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send_(message: Message) -> None:
        sent.append(message)

    middleware = KeyMiddleware(open_to_all, KeyFile(key_file), Meters())
    await middleware({"type": "websocket", "path": endpoints.MODELS, "headers": []}, receive, send_)
    assert [message["type"] for message in sent] == ["websocket.close"]


def test_one_tenant_does_not_see_the_answers_of_another(server: ScriptedServer) -> None:
    """Stored responses, their deletion, their continuation and what a budget says of it belong to a key."""
    mine, yours = {"x-api-key": KEY}, {"x-api-key": OTHER_KEY}
    made = server.client.post(RESPONSES, json=body_of(RESPONSES), headers=mine).json()["id"]
    path = f"{RESPONSES}/{made}"
    more = body_of(RESPONSES, {"previous_response_id": made})
    budget = {"route": RESPONSES, "request": more}
    for headers, found in ((yours, False), (mine, True)):
        assert server.client.get(path, headers=headers).status_code == (200 if found else 404)
        assert server.client.post(RESPONSES, json=more, headers=headers).status_code == (200 if found else 400)
        said = server.client.post(endpoints.DECIDE_BUDGET, json=budget, headers=headers).json()
        assert said["admitted"] is found
    assert error_of(server.client.delete(path, headers=yours), path, 404)
    assert server.client.delete(path, headers=mine).json()["deleted"] is True
    assert server.client.get(path, headers=mine).status_code == 404


KEY_FILES: dict[str, bytes] = {
    "one-line": b"k1",
    "newline": b"k1\n",
    "windows": b"\xef\xbb\xbfk1\r\n\r\n",
    "blank-lines": b"\n\n  \nk1\n\n",
    "spaces": b"\t k1 \n",
    "two": b"k0\nk1\n",
    "comments": b"# k2\nk1\n  # k2\n",
}


@pytest.mark.parametrize("content", KEY_FILES.values(), ids=KEY_FILES)
def test_a_key_file_as_editors_and_secrets_write_it(tmp_path: Path, content: bytes) -> None:
    """B131: a Secret's trailing newline became part of the key, and so did a byte order mark."""
    path = tmp_path / "keys"
    path.write_bytes(content)
    keys = KeyFile(path)
    assert keys.tenant_of(b"k1")
    assert not any(keys.tenant_of(key) for key in (b"", b"\n", b" ", b"k2", b"# k2", b"k1\n", b"\xef\xbb\xbfk1"))


def test_a_secret_is_rotated_without_a_restart(tmp_path: Path) -> None:
    """The file is a link into a folder that is a link: the folder's link is replaced, as the kubelet does it."""

    def publish(version: str, key: str) -> None:
        folder = tmp_path / version
        folder.mkdir()
        (folder / "keys").write_text(f"{key}\n")
        (tmp_path / "new").symlink_to(version)
        os.replace(tmp_path / "new", tmp_path / "..data")

    publish("first", KEY)
    (tmp_path / "keys").symlink_to("..data/keys")
    with scripted_server(api_key_file=str(tmp_path / "keys")) as server:
        assert _status(server, KEY) == 200
        publish("second", OTHER_KEY)
        assert (_status(server, KEY), _status(server, OTHER_KEY)) == (401, 200)


def test_a_file_that_went_away_keeps_its_keys_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Between two versions of a Secret nobody is locked out, and a log does not grow with the requests."""
    path = tmp_path / "keys"
    path.write_text(KEY)
    keys = KeyFile(path)
    for trouble in (path.unlink, lambda: path.write_text("\n"), lambda: path.write_bytes(b"\xff")):
        caplog.clear()
        trouble()
        assert all(keys.tenant_of(KEY.encode()) for _ in range(3))
        assert not keys.tenant_of(WRONG.encode())
        assert len(caplog.records) == 1
        assert str(path) in caplog.text
        assert KEY not in caplog.text
    path.write_text(f"{OTHER_KEY} longer")
    assert not keys.tenant_of(KEY.encode())


@pytest.mark.parametrize(
    "content", [None, b"", b"\n \n", b"\xff\xfe"], ids=["missing", "empty", "blank-lines", "not-text"]
)
def test_a_key_file_without_a_key_is_one_sentence_and_exit_code_1(
    tmp_path: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that was meant to ask for a key must not start without one."""
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    assert serve(["--model", "file:///none", "--port", "0", "--api-key-file", str(path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("plimsoll serve: ")
    assert str(path) in said
    assert said.count("\n") == 1


def test_a_key_appears_nowhere(server: ScriptedServer, caplog: pytest.LogCaptureFixture) -> None:
    """B132: keys stood in logs, metrics and error bodies. Whoever asks, with whatever fault, at whatever level."""
    loggers = [logging.getLogger(name) for name in ("uvicorn", "uvicorn.error", "uvicorn.access")]
    for logger in loggers:
        logger.addHandler(caplog.handler)
    said: list[str] = []
    with caplog.at_level(logging.DEBUG), caplog.at_level(logging.DEBUG, logger="uvicorn.error"):
        for key in (KEY, WRONG):
            for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}):
                said += _answers_to_everything(server.client, headers)
    for logger in loggers:
        logger.removeHandler(caplog.handler)
    said += [caplog.text, server.client.get(endpoints.METRICS).text, server.client.get(endpoints.BUDGET).text]
    said.append(repr(server.front.config))
    for key in (KEY, OTHER_KEY, WRONG):
        assert not any(key in text for text in said)


def _answers_to_everything(client: httpx.Client, headers: dict[str, str]) -> list[str]:
    answers = [client.get(path, headers=headers) for path in (endpoints.MODELS, "/none", endpoints.RESPONSES + "/x")]
    answers += [client.post(route, json=body_of(route), headers=headers) for route in ROUTES]
    answers += [send(client, route, b"{", **headers) for route in ROUTES]
    answers.append(client.post(CHAT, json=body_of(CHAT, {"n": 0}), headers=headers))
    return [answer.text + repr(answer.headers) for answer in answers]


def test_without_a_key_file_nobody_is_asked() -> None:
    with scripted_server() as server:
        assert ask(server.client, CHAT).status_code == 200


def _status(server: ScriptedServer, key: str) -> int:
    return server.client.get(endpoints.MODELS, headers={"x-api-key": key}).status_code
