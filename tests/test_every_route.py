"""One table of budgets, every route that the app has, streamed and not: the same grant, the same words, everywhere.

The routes come from the app itself, so a new generation route cannot be forgotten: it fails here until it has a row in
`ASK` (routes/four_routes.py). A byte is a token here (see doubles/server.py), so every number in the table can be
counted by hand.
"""

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from doubles.clients import Clients, send_raw
from doubles.server import MODEL, ScriptedServer, scripted_server, wait_until
from plimsoll_runtime.contract import endpoints
from plimsoll_runtime.routes.app import DIALECTS
from routes.four_routes import ASK
from routes.tool_dialects import TOOL_DIALECTS
from routes.tool_server import ToolServer, tool_server

CONTEXT, DEFAULT, LIMIT = 64, 12, 24
PROMPT = "x" * 11
ROOM = CONTEXT - len(PROMPT)


ABSENT = object()


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, ScriptedServer]]:
    """A server with default and limit, and one with neither, so that the context limits."""
    with (
        scripted_server(context_length=CONTEXT, max_output_default=DEFAULT, max_output_limit=LIMIT) as tight,
        scripted_server(context_length=CONTEXT) as open_,
    ):
        yield {"tight": tight, "open": open_}


def test_every_generation_route_of_the_app_is_asked() -> None:
    assert set(DIALECTS) == set(ASK) == set(endpoints.GENERATION_ROUTES)


WRONG: list[Any] = [0, -1, -2, -(2**31), 2**31, 2**63, 10**30, "8", 8.5, True, False, [], {}]
# (which server, limit sent, grant, limited_by) under Clamp; None for a 400 in every mode
GRANTS: list[tuple[str, Any, int | None, str]] = [
    ("tight", ABSENT, DEFAULT, "default"),
    ("tight", None, DEFAULT, "default"),
    ("tight", 1, 1, "request"),
    ("tight", 2, 2, "request"),
    ("tight", 17, 17, "request"),
    ("tight", 8.0, 8, "request"),
    ("tight", LIMIT, LIMIT, "request"),
    ("tight", LIMIT + 1, LIMIT, "limit"),
    ("tight", ROOM, LIMIT, "limit"),
    ("tight", 10 * CONTEXT, LIMIT, "limit"),
    ("tight", 2**31 - 1, LIMIT, "limit"),
    ("open", ABSENT, ROOM, "context"),
    ("open", 1, 1, "request"),
    ("open", ROOM - 1, ROOM - 1, "request"),
    ("open", ROOM, ROOM, "request"),
    ("open", ROOM + 1, ROOM, "context"),
    ("open", CONTEXT, ROOM, "context"),
    ("open", 10 * CONTEXT, ROOM, "context"),
    *(("tight", wrong, None, "") for wrong in WRONG),
]


def _row_id(row: Any) -> str:
    return "absent" if row is ABSENT else str(row)[:24]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("mode", ["setting", "clamp", "refuse"])
@pytest.mark.parametrize("route", endpoints.GENERATION_ROUTES)
@pytest.mark.parametrize(("server", "sent", "granted", "limited_by"), GRANTS, ids=_row_id)
def test_the_same_budget_on_every_route(
    servers: dict[str, ScriptedServer],
    server: str,
    sent: Any,
    granted: int | None,
    limited_by: str,
    mode: str,
    route: str,
    stream: bool,
) -> None:
    """FreeToken #395: one of four routes read the default, the others ran to 32767; each limit was one short."""
    ask = ASK[route]
    headers = {} if mode == "setting" else {endpoints.HEADER_OVER_BUDGET: mode.upper()}
    answer = ask_route(servers[server], route, sent, stream, headers)
    over = sent not in (ABSENT, None) and granted is not None and sent > granted
    if granted is None or (mode == "refuse" and over):
        _assert_refused(answer, route, sent, granted, limited_by)
        return
    assert answer.status == 200, answer.body
    assert answer.headers[endpoints.HEADER_PROMPT_TOKENS] == str(len(PROMPT))
    assert answer.headers[endpoints.HEADER_MAX_OUTPUT_TOKENS] == str(granted)
    assert answer.headers[endpoints.HEADER_LIMITED_BY] == limited_by
    assert ask.output_tokens(answer.body) == granted
    assert ask.reason(answer.body) == ask.length_reason(limited_by)
    assert answer.finish_detail == {"type": limited_by, "at": granted}


def _assert_refused(answer: "_Answer", route: str, sent: Any, granted: int | None, limited_by: str) -> None:
    error = answer.body["error"]
    assert answer.status == 400
    assert answer.headers["content-type"] == "application/json"
    assert error["type"] == "invalid_request_error"
    if route != endpoints.MESSAGES:
        assert error["param"] == ASK[route].limit_field
        assert set(error) >= {"message", "type", "param", "code"}
    if granted is None:
        return
    assert answer.headers[endpoints.HEADER_PROMPT_TOKENS] == str(len(PROMPT))
    limit = LIMIT if limited_by == "limit" else None
    numbers = (error["prompt_tokens"], error["requested_output_tokens"], error["max_output_limit"])
    assert numbers == (len(PROMPT), sent, limit)
    assert error["context_length"] == CONTEXT
    if route != endpoints.MESSAGES:
        assert error["code"] == ("invalid_value" if limited_by == "limit" else "context_length_exceeded")
    elif limited_by == "context":
        said = f"input length and `max_tokens` exceed context limit: {len(PROMPT)} + {sent} > {CONTEXT}"
        assert said in error["message"]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("route", endpoints.GENERATION_ROUTES)
@pytest.mark.parametrize("prompt_tokens", [CONTEXT - 1, CONTEXT, CONTEXT + 1, CONTEXT + 240])
def test_a_prompt_at_the_edge(servers: dict[str, ScriptedServer], prompt_tokens: int, route: str, stream: bool) -> None:
    """B04: the derived default became negative, and clients were told that their max_tokens was -239."""
    answer = ask_route(servers["open"], route, ABSENT, stream, {}, "x" * prompt_tokens)
    if prompt_tokens < CONTEXT:
        assert ASK[route].output_tokens(answer.body) == 1
        return
    assert answer.status == 400
    assert answer.headers[endpoints.HEADER_PROMPT_TOKENS] == str(prompt_tokens)
    error = answer.body["error"]
    assert str(prompt_tokens) in error["message"]
    assert not re.search(r"-\d", error["message"])
    assert error["requested_output_tokens"] is None
    if route == endpoints.MESSAGES:
        assert f"prompt is too long: {prompt_tokens} tokens > {CONTEXT} maximum" in error["message"]
    else:
        assert error["code"] == "context_length_exceeded"
        assert error["param"] == ("messages" if "chat" in route else "prompt" if "completions" in route else "input")


@pytest.mark.parametrize("route", endpoints.GENERATION_ROUTES)
@pytest.mark.parametrize(("server", "sent", "granted", "limited_by"), GRANTS, ids=_row_id)
def test_the_budget_route_says_what_the_route_would_do(
    servers: dict[str, ScriptedServer], server: str, sent: Any, granted: int | None, limited_by: str, route: str
) -> None:
    body = {"route": route, "request": _body(route, sent, False, PROMPT)}
    client = servers[server].client
    for mode in ("clamp", "refuse"):
        headers = {endpoints.HEADER_OVER_BUDGET: mode}
        said = client.post(endpoints.DECIDE_BUDGET, json=body, headers=headers).json()
        answer = ask_route(servers[server], route, sent, False, headers)
        assert said["admitted"] is (answer.status == 200)
        if said["admitted"]:
            assert (said["prompt_tokens"], said["max_output_tokens"], said["limited_by"]) == (11, granted, limited_by)
        else:
            assert said["status"] == answer.status
            assert _without_id(said["error"]) == _without_id(answer.body)


@pytest.mark.parametrize("route", endpoints.GENERATION_ROUTES)
def test_another_word_for_over_budget_is_refused(servers: dict[str, ScriptedServer], route: str) -> None:
    assert ask_route(servers["open"], route, 1, False, {endpoints.HEADER_OVER_BUDGET: "maybe"}).status == 400


def test_a_list_of_prompts_shows_the_sum_and_the_smallest_grant(servers: dict[str, ScriptedServer]) -> None:
    """Each prompt has its own budget, each of its choices the whole grant; one prompt without room refuses all."""
    body = {"model": MODEL, "ignore_eos": True, "prompt": ["x" * 11, "x" * 40], "n": 2}
    answer = servers["open"].client.post(endpoints.COMPLETIONS, json=body)
    assert answer.json()["usage"]["completion_tokens"] == 2 * (CONTEXT - 11) + 2 * (CONTEXT - 40)
    assert answer.headers[endpoints.HEADER_PROMPT_TOKENS] == str(11 + 40)
    assert answer.headers[endpoints.HEADER_MAX_OUTPUT_TOKENS] == str(CONTEXT - 40)
    assert answer.headers[endpoints.HEADER_LIMITED_BY] == "context"
    assert answer.headers[endpoints.HEADER_FINISH_DETAIL] == "context"
    refused = servers["open"].client.post(endpoints.COMPLETIONS, json={**body, "prompt": ["x" * 11, "x" * CONTEXT]})
    assert (refused.status_code, refused.headers[endpoints.HEADER_PROMPT_TOKENS]) == (400, str(CONTEXT))


@pytest.fixture(scope="module")
def with_tools() -> Iterator[dict[str, ToolServer]]:
    """A server that reads tool calls, and one that does not."""
    with tool_server() as reading, tool_server(tool_call_parser="none") as deaf:
        yield {"hermes": reading, "none": deaf}


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("route", endpoints.GENERATION_ROUTES)
@pytest.mark.parametrize("parser", ["hermes", "none"])
def test_tools_are_called_or_refused_by_name(
    with_tools: dict[str, ToolServer], parser: str, route: str, stream: bool
) -> None:
    """B70 to B81: a call is the same on every route that has tools, and never text where nothing reads it."""
    scene = with_tools[parser]
    row = scene.row("B72 three calls with text before and between")
    if parser == "none" or route == endpoints.COMPLETIONS:
        tools = TOOL_DIALECTS.get(route, TOOL_DIALECTS[endpoints.CHAT_COMPLETIONS]).tools(scene.tools)
        body = {"model": MODEL, "stream": stream, **ASK[route].body(f"ask {row};"), "tools": tools}
        answer = scene.server.client.post(route, json=body)
        assert answer.status_code == 400
        assert "tools" in answer.json()["error"]["message"]
        return
    dialect = TOOL_DIALECTS[route]
    fields = {"tools": dialect.tools(scene.tools), dialect.limit: 512}
    heard = dialect.ask(scene.server.url, f"ask {row};", stream, fields)
    assert (heard.content, heard.reason) == (scene.rows[row]["content"], dialect.called)
    assert [(name, json.loads(text)) for _, name, text in heard.calls] == [
        (name, json.loads(text)) for name, text in scene.rows[row]["calls"]
    ]


@dataclass(frozen=True)
class Crowd:
    """A request on a server of one slot, maybe not alone, and what is to be seen of it.

    `before` and `after` are the output limits of a neighbour that comes before it, or once it is in the background.
    `notices`: its stream says that it was paused. `counted`: the metric that is not 0 then. `left` requests are in the
    house when it is over.
    """

    limit: int = 4
    status: int = 200
    detail: str = "request"
    before: int | None = None
    after: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    notices: bool = False
    counted: str | None = None
    left: int = 0


LONG, LATE = 200, 3000
REPEATING = 1024
"""Copies of one token that make a repetition (engine/runaway.py)."""
HURRY = {endpoints.HEADER_REQUEST_TIMEOUT: "0.8"}
PAUSED, DEMOTED, STOPPED = (
    'preemptions_total{kind="pause"}',
    'repetitions_total{action="demoted"}',
    'repetitions_total{action="stopped"}',
)
CROWDS: Mapping[str, Crowd] = {
    "queued": Crowd(before=60, settings={"scheduling": "fifo"}),
    "refused": Crowd(status=429, before=LATE, settings={"max_waiting": 0}, left=1),
    "too-late": Crowd(status=429, before=LATE, settings={"scheduling": "fifo"}, headers=HURRY, left=1),
    "overtaking": Crowd(before=LATE, left=1, counted=PAUSED),
    "paused": Crowd(LONG, after=4, notices=True, counted=PAUSED),
    "deadline-cut": Crowd(LATE, detail="deadline", headers=HURRY, counted="deadline_truncations_total"),
    "deadline-of-the-server": Crowd(LATE, detail="deadline", settings={"request_timeout": 0.4}),
    "deadline-unheard": Crowd(LONG, headers=HURRY, settings={"honour_client_deadlines": False}),
    "deadline-aborted": Crowd(LATE, status=504, headers=HURRY, settings={"on_deadline": "abort"}),
    "demoted": Crowd(REPEATING + LONG, after=4, settings={"max_output_default": LATE}, notices=True, counted=DEMOTED),
    "stopped": Crowd(LATE, detail="repetition", fields={"repetition_stop": True}, counted=STOPPED),
    "stopped-by-the-server": Crowd(LATE, detail="repetition", settings={"runaway": "stop"}, counted=STOPPED),
}


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("route", endpoints.GENERATION_ROUTES)
@pytest.mark.parametrize("name", CROWDS)
def test_in_a_crowd_every_route_is_treated_alike(name: str, route: str, stream: bool) -> None:
    """The first report: one slot, one runaway, and whoever came later waited 8.5 minutes, or hung up and came again."""
    scene = CROWDS[name]
    repeats = scene.counted in (DEMOTED, STOPPED)
    in_background = REPEATING if repeats else 2 * DEFAULT

    def step(number: int) -> None:
        time.sleep(0 if repeats and number < REPEATING else 0.002)

    settings = {"max_output_default": DEFAULT, "context_length": 4096, **scene.settings}
    with scripted_server(page_size=64, running_slots=1, before_step=step, **settings) as server:
        mine, others = Clients(server), Clients(server)
        holder = None if scene.before is None else send_raw(server, route, "before", False, scene.before)
        wait_until(lambda: holder is None or server.runner.num_steps > in_background)
        mine.send(route, scene.limit, stream, PROMPT, scene.headers, **_asks_usage(route, stream), **scene.fields)
        if scene.after is not None:
            wait_until(lambda: server.runner.num_steps > in_background)
            others.send(route, scene.after)
        mine.statuses()
        assert others.statuses() == [200] * (scene.after is not None)
        assert server.inside == scene.left
        _assert_as_told(scene, route, stream, mine.answers[0])
        metrics = server.client.get(endpoints.METRICS).text
        assert scene.counted is None or re.search(rf"^plimsoll_{re.escape(scene.counted)} [1-9]", metrics, re.MULTILINE)
        if holder is not None:
            holder.close()
            server.wait_for_inside(0)


def _assert_as_told(scene: Crowd, route: str, stream: bool, response: httpx.Response) -> None:
    answer = response.text
    assert [f": {word}" in answer.splitlines() for word in ("paused", "resumed")] == [scene.notices and stream] * 2
    if scene.status == 429:
        assert response.status_code == (529 if route == endpoints.MESSAGES else 429)
        assert 1 <= int(response.headers["retry-after"]) <= 60
        assert int(response.headers[endpoints.HEADER_QUEUE_WAIT_ESTIMATE]) >= 0
    elif scene.status == 504:
        assert response.status_code == (200 if stream else 504)
        assert response.headers.get("x-should-retry") == (None if stream else "false")
        last = json.loads(_data(answer)[-1]) if stream else response.json()
        kind = {endpoints.MESSAGES: "timeout_error", endpoints.RESPONSES: "server_error"}.get(
            route, "deadline_exceeded"
        )
        assert kind in json.dumps(last)
    else:
        told = _told(response, route, stream)
        tokens = ASK[route].output_tokens(told.body)
        assert (told.finish_detail["type"], told.finish_detail["at"]) == (scene.detail, tokens)
        assert tokens == scene.limit if scene.detail == "request" else 0 < tokens < scene.limit
        assert ASK[route].reason(told.body) == ASK[route].length_reason(scene.detail)


@dataclass(frozen=True)
class _Answer:
    """A plain answer, or the last state of a streamed one in the plain answer's shape."""

    status: int
    headers: Mapping[str, str]
    body: dict[str, Any]
    finish_detail: Any


def _body(route: str, sent: Any, stream: bool, prompt: str) -> dict[str, Any]:
    ask = ASK[route]
    body: dict[str, Any] = {"model": MODEL, "ignore_eos": True, **ask.body(prompt)}
    if sent is not ABSENT:
        body[ask.limit_field] = sent
    return body | ({"stream": True} if stream else {}) | _asks_usage(route, stream)


def _asks_usage(route: str, stream: bool) -> dict[str, Any]:
    has_options = stream and route in (endpoints.CHAT_COMPLETIONS, endpoints.COMPLETIONS)
    return {"stream_options": {"include_usage": True}} if has_options else {}


def ask_route(
    server: ScriptedServer, route: str, sent: Any, stream: bool, headers: dict[str, str], prompt: str = PROMPT
) -> _Answer:
    return _told(server.client.post(route, json=_body(route, sent, stream, prompt), headers=headers), route, stream)


def _told(response: httpx.Response, route: str, stream: bool) -> _Answer:
    if response.status_code != 200 or not stream:
        body = response.json()
        return _Answer(response.status_code, response.headers, body, _plain_detail(route, response, body))
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(data) for data in _data(response.text) if data != "[DONE]"]
    return _last_state(route, response, events)


def _plain_detail(route: str, response: httpx.Response, body: dict[str, Any]) -> Any:
    if response.status_code != 200:
        return None
    detail = body["choices"][0]["finish_detail"] if "choices" in body else body["finish_detail"]
    assert response.headers[endpoints.HEADER_FINISH_DETAIL] == detail["type"]
    return detail


def _data(text: str) -> list[str]:
    return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]


def _last_state(route: str, response: httpx.Response, events: list[dict[str, Any]]) -> _Answer:
    status, headers = response.status_code, response.headers
    if route == endpoints.RESPONSES:
        last = events[-1]["response"]
        assert events[-1]["type"] == "response.incomplete"
        return _Answer(status, headers, last, last["finish_detail"])
    if route == endpoints.MESSAGES:
        delta = next(event for event in events if event["type"] == "message_delta")
        body = {"stop_reason": delta["delta"]["stop_reason"], "usage": delta["usage"]}
        return _Answer(status, headers, body, _detail_of_message_delta(delta))
    usage = events[-1]["usage"]
    last_choice = next(event["choices"][0] for event in reversed(events) if event["choices"])
    return _Answer(status, headers, {"usage": usage, "choices": [last_choice]}, last_choice["finish_detail"])


def _detail_of_message_delta(event: dict[str, Any]) -> Any:
    return event.get("finish_detail", event["delta"].get("finish_detail"))


def _without_id(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "request_id"}
