"""Answers that have a form, over HTTP on a scripted model: every route and mode, every way to ask, every refusal.

The scripted model would write `a` for ever, so whatever else stands in an answer was put there by its form.
"""

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from doubles.server import MODEL, ScriptedServer, scripted_server, wait_until
from routes.four_routes import (
    ASK,
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    ROUTES,
    error_of,
    every_route,
    name_of,
)

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"ok": {"const": True}, "word": {"enum": ["aa", "bb"]}},
    "required": ["ok", "word"],
    "additionalProperties": False,
}
_NAMED = {"name": "answer", "schema": SCHEMA, "strict": True}
OWN: dict[str, dict[str, Any]] = {
    CHAT: {"response_format": {"type": "json_schema", "json_schema": _NAMED}},
    COMPLETIONS: {"response_format": {"type": "json_schema", "json_schema": _NAMED}},
    RESPONSES: {"text": {"format": {"type": "json_schema", **_NAMED}}},
    MESSAGES: {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
}
"""How each API asks for an answer under a schema."""
SCHEMA_PARAM: dict[str, str] = {
    CHAT: "response_format.json_schema.schema",
    COMPLETIONS: "response_format.json_schema.schema",
    RESPONSES: "text.format.schema",
    MESSAGES: "output_config.format.schema",
}


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with scripted_server(context_length=512, running_slots=4, max_output_default=200) as running:
        yield running


def ask(server: ScriptedServer, route: str, *, stream: bool = False, **fields: Any) -> Any:
    return server.client.post(route, json={"model": MODEL, "stream": stream, **ASK[route].body("hi"), **fields})


def whole(server: ScriptedServer, route: str, **fields: Any) -> tuple[str, Any]:
    answer = ask(server, route, **fields)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    return text_of(route, body), ASK[route].reason(body)


def text_of(route: str, body: Any) -> str:
    texts: dict[str, Callable[[], str]] = {
        CHAT: lambda: body["choices"][0]["message"]["content"],
        COMPLETIONS: lambda: body["choices"][0]["text"],
        RESPONSES: lambda: body["output"][0]["content"][0]["text"],
        MESSAGES: lambda: body["content"][0]["text"],
    }
    return texts[route]()


def streamed(server: ScriptedServer, route: str, **fields: Any) -> str:
    answer = ask(server, route, stream=True, **fields)
    assert answer.status_code == 200, answer.text
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    return "".join(map(_delta, events))


def _delta(event: Any) -> str:
    match event:
        case {"choices": [{"delta": {"content": str(text)}}]} | {"choices": [{"text": str(text)}]}:
            return text
        case {"type": "response.output_text.delta", "delta": str(text)} | {"delta": {"text": str(text)}}:
            return text
    return ""


ENDED: dict[str, Any] = {CHAT: "stop", COMPLETIONS: "stop", MESSAGES: "end_turn", RESPONSES: ("completed", None)}
BRIEF: dict[str, Any] = {"logit_bias": {"125": 70, **{str(space): -9 for space in b" \t\r\n"}}}
"""A taste for closing braces, and none for white space: what is free in a form ends soon."""
SAMPLINGS: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 1, "seed": 4}, {"temperature": 1, "seed": 5}]


@every_route
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_each_api_asks_for_a_schema_in_its_own_words(
    server: ScriptedServer, route: str, sampling: dict[str, Any]
) -> None:
    text, reason = whole(server, route, **OWN[route], **sampling, **BRIEF)
    said = json.loads(text)
    assert said["ok"] is True
    assert said["word"] in ("aa", "bb")
    assert reason == ENDED[route]
    assert streamed(server, route, **OWN[route], **sampling, **BRIEF) == text


@every_route
def test_a_form_that_the_limit_cuts_says_length(server: ScriptedServer, route: str) -> None:
    """The SDK parses what says `stop`: half of a JSON text must not."""
    ask_ = ASK[route]
    _, reason = whole(server, route, **OWN[route], **{ask_.limit_field: 3}, temperature=0)
    assert reason == ask_.length_reason("request")


EXTENSIONS: list[tuple[dict[str, Any], Any]] = [
    ({"regex": "[bc]{3}!"}, lambda text: len(text) == 4 and set(text[:3]) <= set("bc") and text[3] == "!"),
    ({"choice": ["yes", "no", 'é\n"\\']}, lambda text: text in ("yes", "no", 'é\n"\\')),
    ({"grammar": 'start: "<" DIGITS ">"\nDIGITS: /[0-9]{2}/'}, lambda text: text[1:3].isdigit() and len(text) == 4),
    ({"json": SCHEMA}, lambda text: json.loads(text)["ok"]),
    ({"json_object": True}, lambda text: isinstance(json.loads(text), dict)),
]


@every_route
@pytest.mark.parametrize(("extension", "fits"), EXTENSIONS, ids=lambda value: str(value)[:12])
def test_the_extension_has_the_same_words_everywhere(
    server: ScriptedServer, route: str, extension: dict[str, Any], fits: Any
) -> None:
    text, reason = whole(server, route, structured_outputs=extension, seed=2, **BRIEF)
    assert fits(text)
    assert reason == ENDED[route]


def test_any_object(server: ScriptedServer) -> None:
    rows: list[tuple[str, dict[str, Any]]] = [
        (CHAT, {"response_format": {"type": "json_object"}}),
        (COMPLETIONS, {"response_format": {"type": "json_object"}}),
        (RESPONSES, {"text": {"format": {"type": "json_object"}}}),
    ]
    for route, fields in rows:
        text, _ = whole(server, route, **fields, **BRIEF)
        assert isinstance(json.loads(text), dict)


@every_route
def test_the_older_place_of_messages_and_free_text(server: ScriptedServer, route: str) -> None:
    if route == MESSAGES:
        text, _ = whole(server, route, output_format={"type": "json_schema", "schema": SCHEMA})
        assert json.loads(text)["ok"]
    free: dict[str, dict[str, Any]] = {
        CHAT: {"response_format": {"type": "text"}},
        RESPONSES: {"text": {"format": {"type": "text"}}},
    }
    text, _ = whole(server, route, **free.get(route, {}), **{ASK[route].limit_field: 3})
    assert text == "aaa"


def test_each_choice_has_its_own_form(server: ScriptedServer) -> None:
    extension: dict[str, Any] = {"structured_outputs": {"regex": "[b-z]{6}"}}
    body = ask(server, CHAT, n=3, temperature=1, seed=3, **extension).json()
    texts = [choice["message"]["content"] for choice in body["choices"]]
    assert all(len(text) == 6 and "a" not in text for text in texts)
    assert len(set(texts)) == 3
    prompts = ask(server, COMPLETIONS, prompt=["x", "yy"], n=2, temperature=1, **extension).json()["choices"]
    assert [len(choice["text"]) for choice in prompts] == [6] * 4


def test_log_probabilities_are_the_models_own(server: ScriptedServer) -> None:
    """The model gives its `a` all the weight; what the form made of it does not change that."""
    body = ask(server, CHAT, logprobs=True, top_logprobs=1, temperature=0, structured_outputs={"regex": "bb"}).json()
    content = body["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content[:2]] == ["b", "b"]
    assert all(entry["logprob"] < -40 and entry["top_logprobs"][0]["token"] == "a" for entry in content[:2])


SLOW = {"type": "integer", "multipleOf": 1_000_003}


def _schema_of(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "schema": schema}


def _chat_schema(**fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": fields}}


REFUSED: list[tuple[str, tuple[str, ...], dict[str, Any], str]] = [
    ("schema missing", (CHAT, COMPLETIONS), _chat_schema(), SCHEMA_PARAM[CHAT]),
    ("schema of a wrong type", (RESPONSES,), {"text": {"format": _schema_of(5)}}, "text.format.schema"),
    ("unknown type", (CHAT, COMPLETIONS), {"response_format": {"type": "xml"}}, "response_format.type"),
    ("unknown type", (RESPONSES,), {"text": {"format": {"type": "grammar"}}}, "text.format.type"),
    ("unknown type", (MESSAGES,), {"output_config": {"format": {"type": "json_object"}}}, "output_config.format.type"),
    ("strict is no switch", (CHAT,), _chat_schema(**_NAMED | {"strict": 1}), "response_format.json_schema.strict"),
    ("two kinds", ROUTES, {"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
    ("no kind", ROUTES, {"structured_outputs": {}}, "structured_outputs"),
    ("a tag", ROUTES, {"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag"),
    ("the older word", ROUTES, {"guided_regex": "a"}, "guided_regex"),
    ("both ways", (CHAT, COMPLETIONS), {**OWN[CHAT], "structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
    ("both places", (MESSAGES,), {**OWN[MESSAGES], "output_format": _schema_of({})}, "output_format.schema"),
    ("without an end", ROUTES, {"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos"),
    ("longer than it is", ROUTES, {"structured_outputs": {"regex": "a"}, "min_tokens": 5}, "min_tokens"),
    ("no regex", ROUTES, {"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    ("no grammar", ROUTES, {"structured_outputs": {"grammar": "root ::= [a]"}}, "structured_outputs.grammar"),
    ("too large", ROUTES, {"structured_outputs": {"regex": "a" * 65_537}}, "structured_outputs.regex"),
    ("slow", ROUTES, {"structured_outputs": {"json": SLOW}}, "structured_outputs.json"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        pytest.param(route, fields, param, id=f"{name}-{name_of(route)}")
        for name, routes, fields, param in REFUSED
        for route in routes
    ],
)
def test_a_wrong_form_is_refused_under_its_wire_name(
    server: ScriptedServer, route: str, fields: dict[str, Any], param: str
) -> None:
    plain = error_of(ask(server, route, **fields), route, 400, param)
    assert error_of(ask(server, route, stream=True, **fields), route, 400, param) == plain
    assert server.inside == 0


@every_route
def test_a_schema_that_means_nothing_is_refused_under_its_wire_name(server: ScriptedServer, route: str) -> None:
    asked = json.loads(json.dumps(OWN[route]).replace('"const": true', '"type": "objekt"'))
    error = error_of(ask(server, route, **asked), route, 400, SCHEMA_PARAM[route])
    assert "objekt" in error["message"]


def test_the_older_words_say_what_to_write(server: ScriptedServer) -> None:
    error = error_of(ask(server, CHAT, guided_json=SCHEMA), CHAT, 400, "guided_json")
    assert 'structured_outputs: {"json": ...}' in error["message"]


@every_route
def test_a_budget_is_decided_with_the_form(server: ScriptedServer, route: str) -> None:
    """What a decision says is what the request would hear."""
    request = {"model": MODEL, **ASK[route].body("hi"), "structured_outputs": {"regex": "("}}
    decision = server.client.post("/v1/budget", json={"route": route, "request": request}).json()
    assert (decision["admitted"], decision["status"]) == (False, 400)


MANY = {"type": "object", "properties": {f"p{i}": {} for i in range(2000)}}
"""Behind the first brace any of two thousand keys may follow, which is more than is followed."""


@every_route
def test_a_form_that_cannot_be_followed_to_its_end_is_the_clients_mistake(server: ScriptedServer, route: str) -> None:
    """Which shows only while it is followed: a plain answer is a 400, a stream breaks with the same words."""
    fields: dict[str, Any] = {"structured_outputs": {"json": MANY}}
    error = error_of(ask(server, route, **fields), route, 400)
    assert "structured_outputs.json is too complex to be followed" in error["message"]
    stream = ask(server, route, stream=True, **fields)
    assert stream.status_code == 200
    assert error["message"] in stream.text
    limit: dict[str, Any] = {ASK[route].limit_field: 2}
    assert ask(server, route, **limit).status_code == 200
    assert server.inside == 0


def test_others_do_not_wait_while_a_form_is_compiled(server: ScriptedServer) -> None:
    """One form takes its whole second of processor time; free answers come and go meanwhile."""
    statuses: list[int] = []
    hostile: dict[str, Any] = {"structured_outputs": {"json": {"type": "integer", "multipleOf": 1_000_081}}}
    thread = threading.Thread(target=lambda: statuses.append(ask(server, CHAT, **hostile).status_code))
    thread.start()
    wait_until(lambda: server.inside == 1)
    answered = 0
    while not statuses and answered < 5:
        assert ask(server, COMPLETIONS, max_tokens=2).status_code == 200
        answered += 1
    assert answered == 5, "five answers came before the refusal"
    thread.join(30)
    assert statuses == [400]
