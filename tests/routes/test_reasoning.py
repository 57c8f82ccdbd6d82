"""Reasoning over HTTP, read by the official SDKs on three routes; completions only counts it."""

from collections.abc import Sequence
from typing import Any

import pytest

from doubles.server import MODEL, ScriptedServer, answers, scripted_server
from plimsoll_runtime.contract import endpoints
from routes.four_routes import ASK, COMPLETIONS, error_of, every_route, streamed_or_not
from routes.tool_dialects import TOOL_DIALECTS, Heard
from routes.tool_server import WITH_TOOLS
from text.tool_call_corpus import pieces_of

OPENED = "{% for message in messages %}{{ message.content }}{% endfor %}<think>\n"
SWITCHED = (
    "{% for message in messages %}{{ message.content }}{% endfor %}"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
)
HISTORY = (
    "{% for message in messages %}[{{ message.role }}]"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content }}{% endfor %}"
)
THREE_ROUTES = tuple(TOOL_DIALECTS)
three_routes = pytest.mark.parametrize("route", THREE_ROUTES, ids=["chat", "responses", "messages"])
both_modes = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
DRAFT = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
CALL = '<tool_call>{"name": "f", "arguments": {"x": 2}}</tool_call>'
TOOLS = {"f": {"type": "object", "properties": {"x": {"type": "integer"}}}}


def server(pieces: Sequence[str], *, ends: bool = True, **settings: Any) -> Any:
    return scripted_server(
        lambda vocabulary: answers(vocabulary, pieces, ends=ends),
        pieces=pieces,
        page_size=16,
        **{"context_length": 2048, "reasoning_parser": "qwen3", **settings},
    )


def heard(running: ScriptedServer, route: str, *, stream: bool, **fields: Any) -> Heard:
    return TOOL_DIALECTS[route].ask(running.url, "hi", stream, fields)


@both_modes
@three_routes
def test_reasoning_and_answer_are_told_apart(route: str, stream: bool) -> None:
    pieces = ["<think>", "\nwell", ", 2+2", "\n", "</think>", "\n\n", "It is", " 4."]
    with server(pieces) as running:
        answer = heard(running, route, stream=stream)
    assert (answer.reasoning, answer.content, answer.tokens) == ("well, 2+2", "It is 4.", (9, 5))
    assert answer.reason == TOOL_DIALECTS[route].ended


@both_modes
@three_routes
@pytest.mark.parametrize(
    ("limit", "reasoning", "reasoning_tokens"),
    [(10, "r" * 9, 10), (21, "r" * 20, 21), (22, "r" * 20, 22)],
    ids=["inside", "before the tag", "with the tag"],
)
def test_the_limit_counts_reasoning(
    route: str, stream: bool, limit: int, reasoning: str, reasoning_tokens: int
) -> None:
    """B16: the limit counted visible text alone, or the answer vanished with no sign of why."""
    pieces = ["<think>", *["r"] * 20, "</think>", *["c"] * 20]
    dialect = TOOL_DIALECTS[route]
    with server(pieces) as running:
        answer = heard(running, route, stream=stream, **{dialect.limit: limit})
    assert (answer.reasoning, answer.content, answer.reason) == (reasoning, "", dialect.cut)
    assert answer.tokens == (limit, reasoning_tokens)


@both_modes
@three_routes
@pytest.mark.parametrize("template", [None, OPENED], ids=["tag in the answer", "tag in the prompt"])
def test_stop_strings_look_at_the_answer_alone(route: str, stream: bool, template: str | None) -> None:
    """B52: a stop string matched inside the thinking text and ended the run with no answer."""
    opening = ["<think>"] if template is None else []
    pieces = [*opening, "The Question:", " is...", "</think>", "Answer 4", "Question:", "more"]
    settings: dict[str, Any] = {} if template is None else {"template": template}
    with server(pieces, **settings) as running:
        stop = {ASK[route].stop_field: ["Question:"]}
        fields = stop if route == endpoints.MESSAGES else {"extra_body": stop}
        answer = heard(running, route, stream=stream, **fields)
    assert (answer.reasoning, answer.content) == ("The Question: is...", "Answer 4")
    assert answer.reason == ("stop_sequence" if route == endpoints.MESSAGES else TOOL_DIALECTS[route].ended)


@both_modes
@three_routes
@pytest.mark.parametrize(
    ("text", "reasoning", "calls"),
    [
        (f"<think>maybe {DRAFT}</think>{CALL}", f"maybe {DRAFT}", 1),
        (f"<think>maybe {DRAFT}</think>", f"maybe {DRAFT}", 0),
        (f"{CALL}\n<think>or {DRAFT}", f"or {DRAFT}", 1),
    ],
    ids=["draft and call", "draft alone", "call before a think that never closes"],
)
def test_a_call_drafted_in_reasoning_is_no_call(
    route: str, stream: bool, text: str, reasoning: str, calls: int
) -> None:
    """B76: it was executed (twice), or a real call was lost because a draft confused the parser."""
    settings: dict[str, Any] = {"tool_call_parser": "hermes", "template": WITH_TOOLS}
    dialect = TOOL_DIALECTS[route]
    with server(pieces_of(text, 5), **settings) as running:
        answer = heard(running, route, stream=stream, tools=dialect.tools(TOOLS))
    assert (answer.reasoning, answer.content, answer.named) == (reasoning, "", [["f", '{"x": 2}']] * calls)
    assert answer.reason == (dialect.called if calls else dialect.ended)


@both_modes
@three_routes
@pytest.mark.parametrize("ends", [False, True], ids=["cut", "ended"])
def test_reasoning_that_never_closes_is_not_shown_as_the_answer(route: str, stream: bool, ends: bool) -> None:
    """B82: it was shown as the answer, or dropped."""
    dialect = TOOL_DIALECTS[route]
    with server(["<think>", "part", " one", "\n"], ends=ends) as running:
        answer = heard(running, route, stream=stream, **({} if ends else {dialect.limit: 4}))
    assert (answer.reasoning, answer.content) == ("part one\n", "")
    assert answer.reason == (dialect.ended if ends else dialect.cut)


@both_modes
@three_routes
@pytest.mark.parametrize("pieces", [["Hi there"], ["<think>", "hm", "</think>", "\n\n", "Hi there"]])
def test_with_thinking_switched_off_the_answer_is_the_content(route: str, stream: bool, pieces: list[str]) -> None:
    """B83: it landed in the reasoning field; what the model thinks anyway is still split off."""
    off = {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
    with server(pieces, template=SWITCHED) as running:
        answer = heard(running, route, stream=stream, **off)
    assert (answer.content, answer.reasoning) == ("Hi there", "hm" if len(pieces) > 1 else None)


@both_modes
@three_routes
def test_the_template_may_open_the_tag(route: str, stream: bool) -> None:
    """B84: reasoning was shown as content until the tag appeared."""
    with server(["because", "</th", "ink>", "\n\n4"], template=OPENED) as running:
        answer = heard(running, route, stream=stream)
    assert (answer.reasoning, answer.content, answer.tokens) == ("because", "4", (5, 3))


@both_modes
@three_routes
@pytest.mark.parametrize("stop", [None, "XYZW"])
def test_the_first_closing_tag_ends_reasoning(route: str, stream: bool, stop: str | None) -> None:
    """B86: with a stop string set, held text and ids fell out of step and moved the end of thinking into content."""
    fields: dict[str, Any] = {} if stop is None else {ASK[route].stop_field: [stop]}
    if route != endpoints.MESSAGES:
        fields = {"extra_body": fields}
    with server(["<think>", "a</think>draft", "</think>", "final"]) as running:
        answer = heard(running, route, stream=stream, **fields)
    assert (answer.reasoning, answer.content) == ("a", "draft</think>final")


@streamed_or_not
@every_route
def test_reasoning_tokens_are_counted_on_every_route(route: str, stream: bool) -> None:
    pieces = ["<think>", "a", "b", "</think>", "c"]
    with server(pieces, ends=False) as running:
        body = {"model": MODEL, **ASK[route].body("hi"), ASK[route].limit_field: 6}
        answer = running.client.post(route, json=body).json()
        if stream and route == COMPLETIONS:
            text = running.client.post(route, json={**body, "stream": True, "stream_options": {"include_usage": True}})
            assert '"reasoning_tokens":4' in text.text
    usage = answer["usage"]
    details = usage.get("completion_tokens_details") or usage["output_tokens_details"]
    assert (details.get("reasoning_tokens"), details.get("thinking_tokens")) in {(4, None), (None, 4)}
    if route == COMPLETIONS:
        assert answer["choices"][0]["text"] == "<think>ab</think>cc"


def test_without_a_parser_all_text_is_the_answer() -> None:
    with server(["<think>", "hm", "</think>", "Hi"], reasoning_parser="none") as running:
        for route in THREE_ROUTES:
            answer = heard(running, route, stream=False)
            assert (answer.content, answer.reasoning, answer.tokens) == ("<think>hm</think>Hi", None, (5, 0))


def test_without_a_parser_an_effort_is_refused_by_name() -> None:
    asks: dict[str, dict[str, Any]] = {
        endpoints.CHAT_COMPLETIONS: {"reasoning_effort": "low"},
        endpoints.RESPONSES: {"reasoning": {"effort": "low"}},
        endpoints.MESSAGES: {"max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 1024}},
    }
    with server(["Hi"], reasoning_parser="none") as running:
        for route, fields in asks.items():
            response = running.client.post(route, json={"model": MODEL, **ASK[route].body("hi"), **fields})
            error = error_of(response, route, 400)
            assert "--reasoning-parser (spec.parsers.reasoning)" in error["message"]


def test_log_probabilities_are_those_of_the_answer() -> None:
    with server(["<think>", "a", "</think>", "b", "c"]) as running:
        body = {"model": MODEL, **ASK[endpoints.CHAT_COMPLETIONS].body("hi"), "logprobs": True}
        choice = running.client.post(endpoints.CHAT_COMPLETIONS, json=body).json()["choices"][0]
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["b", "c", "<|end|>"]


@three_routes
def test_reasoning_comes_back_in_history(route: str) -> None:
    """What a client was given it may send back, and the template sees it as the model wrote it."""
    turns: dict[str, Any] = {
        endpoints.CHAT_COMPLETIONS: {
            "messages": [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "a", "reasoning_content": "why"},
                {"role": "user", "content": "r"},
            ]
        },
        endpoints.MESSAGES: {
            "messages": [
                {"role": "user", "content": "q"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "why", "signature": "plimsoll-1"},
                        {"type": "text", "text": "a"},
                    ],
                },
                {"role": "user", "content": "r"},
            ]
        },
        endpoints.RESPONSES: {
            "input": [
                {"role": "user", "content": "q"},
                {
                    "type": "reasoning",
                    "id": "rs_1",
                    "summary": [],
                    "content": [{"type": "reasoning_text", "text": "why"}],
                },
                {"role": "assistant", "content": "a"},
                {"role": "user", "content": "r"},
            ]
        },
    }
    expected = "[user]q[assistant]<think>why</think>a[user]r"
    with server(["Hi"], template=HISTORY) as running:
        answer = running.client.post(route, json={"model": MODEL, **turns[route]})
        assert answer.status_code == 200
        assert _prompt_tokens(answer.json()["usage"]) == len(expected)


def test_a_stored_response_remembers_what_it_thought() -> None:
    with server(["<think>", "why", "</think>", "a"], template=HISTORY) as running:
        body: dict[str, Any] = {"model": MODEL, "input": "q"}
        first = running.client.post(endpoints.RESPONSES, json=body).json()
        body |= {"input": "r", "previous_response_id": first["id"]}
        second = running.client.post(endpoints.RESPONSES, json=body).json()
    assert _prompt_tokens(second["usage"]) == len("[user]q[assistant]<think>why</think>a[user]r")


def _prompt_tokens(usage: dict[str, Any]) -> int:
    cached = usage.get("cache_read_input_tokens", 0)
    return int(usage.get("prompt_tokens", usage.get("input_tokens", 0))) + int(cached)


def thinking(budget: int) -> dict[str, Any]:
    return {"thinking": {"type": "enabled", "budget_tokens": budget}}


@both_modes
@pytest.mark.parametrize("template", [None, OPENED], ids=["tag in the answer", "tag in the prompt"])
def test_a_budget_ends_reasoning(stream: bool, template: str | None) -> None:
    """B17 and kin: the budget was checked and then forgotten, or cut the answer instead of the thinking."""
    opening = ["<think>"] if template is None else []
    pieces = [*opening, *["r"] * 2000]
    settings: dict[str, Any] = {} if template is None else {"template": template}
    with server([*pieces, "</think>"], **settings) as running:
        answer = heard(running, endpoints.MESSAGES, stream=stream, max_tokens=1100, **thinking(1024))
    assert answer.tokens == (1100, 1024)
    assert answer.reasoning == "r" * (1023 - len(opening))
    assert (answer.content, answer.reason) == ("r" * (1100 - 1024), "max_tokens")


@both_modes
def test_a_budget_yields_to_the_grant_less_one(stream: bool) -> None:
    """A smaller limit of the server leaves one token for the answer, whatever the budget was."""
    with server(["<think>", *["r"] * 2000, "</think>"], max_output_limit=20) as running:
        answer = heard(running, endpoints.MESSAGES, stream=stream, max_tokens=2000, **thinking(1024))
    assert (answer.tokens, answer.reasoning, answer.content) == ((20, 19), "r" * 17, "r")


def test_reasoning_inside_its_budget_is_left_alone() -> None:
    pieces = ["<think>", "why", "</think>", *["a"] * 1200]
    with server(pieces) as running:
        answer = heard(running, endpoints.MESSAGES, stream=False, max_tokens=1500, **thinking(1024))
    assert (answer.tokens, answer.reasoning, answer.content) == ((1204, 3), "why", "a" * 1200)


def test_a_budget_is_refused_where_reasoning_cannot_be_ended() -> None:
    """The closing tag is no token of this model."""
    with server(["Hi"]) as running:
        body = {"model": MODEL, "max_tokens": 2000, **ASK[endpoints.MESSAGES].body("hi"), **thinking(1024)}
        error = error_of(running.client.post(endpoints.MESSAGES, json=body), endpoints.MESSAGES, 400, "thinking")
    assert "has no token for </think>" in error["message"]
