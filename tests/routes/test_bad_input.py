"""Fields that a client gets wrong: on every route, plain and streamed, the same plain 400, and nothing has begun.

Each row is a kind of fault that another server shipped, under its id; one test reads the table. B45 is in all of them:
streamed requests were answered with 200 and an error inside, or with a body that is not JSON.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from doubles.server import ScriptedServer, scripted_server
from plimsoll_runtime.contract import endpoints
from routes.four_routes import (
    ASK,
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    ROUTES,
    ask,
    error_of,
    every_route,
    name_of,
    on_route,
    refused_alike,
    streamed_or_not,
)

CONTEXT = 64
HUGE = 10**30
TOO_LARGE = [2**31, 2**63, HUGE]
NUM_TOKENS = 259
"""Bytes and control tokens of the scripted model."""
OPENAI = (CHAT, COMPLETIONS, RESPONSES)
CHATS = (CHAT, MESSAGES, RESPONSES)
BOTH_OLD = (CHAT, COMPLETIONS)


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with scripted_server(context_length=CONTEXT) as server:
        yield server


# id, field (LIMIT and STOP: by the route's own name), wrong values, code (None: several), routes
WRONG_FIELDS: list[tuple[str, str, list[Any], str | None, tuple[str, ...]]] = [
    ("B05", "LIMIT", [0, -1, -2, -(2**31)], "integer_below_min_value", ROUTES),
    ("B06", "LIMIT", ["8", 8.5, True, [], {}], "invalid_type", ROUTES),
    ("B07", "LIMIT", TOO_LARGE, "integer_above_max_value", ROUTES),
    ("B07", "n", TOO_LARGE, "integer_above_max_value", BOTH_OLD),
    ("B07", "n", [*TOO_LARGE, 2, 0], "unsupported_parameter", (MESSAGES, RESPONSES)),
    ("B07", "top_logprobs", [*TOO_LARGE, 21, -1, True, "1"], None, (CHAT, RESPONSES)),
    ("B07", "logprobs", [*TOO_LARGE, 6, -1, True, "1"], None, (COMPLETIONS,)),
    ("B15", "n", [0, -1, 129, True, "2", 1.5, []], None, BOTH_OLD),
    ("B15", "best_of", [2, 0, True, HUGE], None, (COMPLETIONS,)),
    ("B27", "seed", [2**63, -(2**63) - 1, HUGE], None, ROUTES),
    ("B27", "seed", ["7", 1.5, True, [], {}], "invalid_type", ROUTES),
    ("B28", "temperature", ["nan", True, [], {}], "invalid_type", ROUTES),
    ("B28", "temperature", [-0.1, 2.1, HUGE, -HUGE], "invalid_value", ROUTES),
    ("B28", "min_p", ["nan", True, -0.1, 1.1], None, ROUTES),
    ("B28", "presence_penalty", ["nan", True, -2.1, 2.1], None, ROUTES),
    ("B28", "frequency_penalty", ["nan", True, -2.1, 2.1], None, ROUTES),
    ("B28", "repetition_penalty", ["nan", True, 0, -1, 11], None, ROUTES),
    ("B29", "top_p", [1.0000001, -0.1, 2, "nan", False], None, ROUTES),
    ("B29", "top_k", [-2, 2**31, HUGE, 1.5, "5", True], None, ROUTES),
    ("B31", "logit_bias", [{"999999": 5}, {"-1": 5}, {"abc": 5}, {"²": 5}, {"": 5}, {"1.0": 5}], None, ROUTES),
    ("B31", "logit_bias", [{str(NUM_TOKENS): 5}, {"5": 101}, {"5": -101}, {"5": HUGE}], "invalid_value", ROUTES),
    ("B31", "logit_bias", [{"5": None}, {"5": "1"}, {"5": True}, [[5, 1]], "5", 5], "invalid_type", ROUTES),
    ("B31", "logit_bias", [{str(number): 0 for number in range(1025)}], "invalid_value", ROUTES),
    ("B32", "stop_token_ids", [[999999], [-1], [NUM_TOKENS], [HUGE], [True], [1.5], [None], [[1]]], None, ROUTES),
    ("B32", "stop_token_ids", [["1"], 5, {}, "5", [1] * 129], "invalid_type", ROUTES),
    ("B53", "min_tokens", [3, 30, -1, "1", True, 1.5, HUGE], None, ROUTES),
    ("B55", "STOP", ["", [""], ["a", ""], ["a" * 65_537], ["a", "b", "c", "d", "e"]], "invalid_value", OPENAI),
    ("B55", "STOP", [[""], ["a", ""], ["a" * 65_537], ["a"] * 65], "invalid_value", (MESSAGES,)),
    ("B55", "STOP", [[1], ["a", None], 5, {}, True, [["a"]]], "invalid_type", ROUTES),
    ("B80", "parallel_tool_calls", ["no", 1], "invalid_type", (CHAT, RESPONSES)),
    ("B80", "tools", [[{"type": "function"}], {}, "x"], "unsupported_parameter", (COMPLETIONS,)),
    ("B80", "tools", [{}, "x"], "invalid_type", (CHAT, RESPONSES, MESSAGES)),
    ("B80", "service_tier", ["priority", ["auto"]], "unsupported_parameter", ROUTES),
    ("B80", "store", [True, "yes"], "unsupported_parameter", BOTH_OLD),
    ("B80", "response_format", [[], "text", 5], "invalid_type", BOTH_OLD),
    ("B80", "guided_json", [{}, {"type": "object"}], "unsupported_parameter", ROUTES),
    ("B80", "structured_outputs", [[], "x", {"regex": 5}, {"choice": []}], "invalid_type", ROUTES),
    ("B80", "structured_outputs", [{"structural_tag": {}}, {"whitespace_pattern": " "}], None, ROUTES),
    ("B80", "suffix", ["tail"], "unsupported_parameter", (COMPLETIONS,)),
    ("B80", "audio", [{"voice": "alloy"}], "unsupported_parameter", (CHAT,)),
    ("B80", "previous_response_id", ["resp_none", "\x00"], "previous_response_not_found", (RESPONSES,)),
    ("B80", "background", [True], "unsupported_parameter", (RESPONSES,)),
    ("B09", "truncation", ["last", 1], "unsupported_parameter", (RESPONSES,)),
    ("B17", "thinking", [{"type": "enabled", "budget_tokens": 2000}, {"type": ["x"]}, {}], None, (MESSAGES,)),
    ("B46", "n", [0], "integer_below_min_value", BOTH_OLD),
    ("types", "model", [5, None, "", [], {}], None, ROUTES),
    ("types", "ignore_eos", ["yes", 1, []], "invalid_type", ROUTES),
    ("types", "stream", ["true", 1, []], "invalid_type", ROUTES),
    ("types", "chat_template_kwargs", [5, [], {"messages": []}, {"bos_token": "x"}, {"tokenize": 1}], None, CHATS),
    ("types", "system", [5, {}, [None]], None, (MESSAGES,)),
    ("types", "instructions", [5, []], "invalid_type", (RESPONSES,)),
    ("types", "echo", ["yes", 1], "invalid_type", (COMPLETIONS,)),
    ("types", "metadata", [5, [], "x"], None, (MESSAGES, RESPONSES)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("route", "name", "values", "code"),
    [
        pytest.param(route, name, values, code, id=f"{case}-{name}-{code or 'any'}-{name_of(route)}")
        for case, name, values, code, routes in WRONG_FIELDS
        for route in routes
    ],
)
def test_a_wrong_field_is_named_and_nothing_begins(
    server: ScriptedServer, route: str, name: str, values: list[Any], code: str | None
) -> None:
    """Before, elsewhere: 422 with `detail`, 500, 200 with a coerced value, or a dead engine."""
    steps = server.runner.num_steps
    for value in values:
        error = refused_alike(server.client, route, {name: value})
        assert on_route(name, route) in (error["message"] if route == MESSAGES else error["param"]), value
        assert code is None or route == MESSAGES or error["code"] == code, value
    assert server.runner.num_steps == steps
    assert server.front.service is not None
    assert server.front.service.house.inside == 0


# id, values of a field that only look wrong, routes
GOOD_FIELDS: list[tuple[str, str, list[Any], tuple[str, ...]]] = [
    ("B06", "LIMIT", [2.0], ROUTES),
    ("B27", "seed", [0, -1, -(2**63), 2**63 - 1, 7.0], ROUTES),
    ("B29", "top_p", [0, 1, 1.0], ROUTES),
    ("B29", "top_k", [-1, 0, 1, NUM_TOKENS, NUM_TOKENS + 1, 9999999], ROUTES),
    ("B29", "temperature", [0, 2, 1e-300, 5e-324], ROUTES),
    ("B29", "min_p", [0, 1], ROUTES),
    ("B29", "repetition_penalty", [0.01, 10], ROUTES),
    ("B31", "logit_bias", [{}, {"5": 1.5, "97": 100, "98": -100}], ROUTES),
    ("B32", "stop_token_ids", [[], [0, NUM_TOKENS - 1]], ROUTES),
    ("B53", "min_tokens", [0, 2, 2.0], ROUTES),
    ("B55", "STOP", [None, [], ["zz", "zz"], ["x" * 10_240], ["1", "2", "3", "4"]], ROUTES),
    ("B55", "STOP", ["zz"], OPENAI),
    ("B55", "STOP", [[str(number) for number in range(64)]], (MESSAGES,)),
    ("B80", "max_token", [1, "a typo is counted, not refused"], ROUTES),
    ("B80", "tools", [None, []], ROUTES),
    ("B59", "metadata", [{"emoji": "\U0001f600", "nul": "\x00"}], ROUTES),
]


@pytest.mark.parametrize(
    ("route", "name", "values"),
    [
        pytest.param(route, name, values, id=f"{case}-{name}-{name_of(route)}")
        for case, name, values, routes in GOOD_FIELDS
        for route in routes
    ],
)
def test_what_only_looks_wrong_is_served_to_its_limit(
    server: ScriptedServer, route: str, name: str, values: list[Any]
) -> None:
    """B55: the limit was reported as a stop. B29: an edge value left no candidate, or crashed the engine."""
    for value in values:
        response = ask(server.client, route, {name: value})
        assert response.status_code == 200, response.text
        assert response.headers[endpoints.HEADER_FINISH_DETAIL] == "request"


@every_route
@pytest.mark.parametrize("prompt_tokens", [CONTEXT, CONTEXT + 1, CONTEXT + 240])
def test_an_overlong_prompt_blames_nothing_that_was_not_sent(
    server: ScriptedServer, route: str, prompt_tokens: int
) -> None:
    """B04: clients that sent no limit were told that their max_tokens was -239."""
    conversation = [{"role": "user", "content": "x" * prompt_tokens}]
    prompt: dict[str, dict[str, Any]] = {
        COMPLETIONS: {"prompt": "x" * prompt_tokens},
        RESPONSES: {"input": conversation},
    }
    fields = prompt.get(route, {"messages": conversation})
    message = refused_alike(server.client, route, {**fields, "LIMIT": None})["message"]
    assert str(prompt_tokens) in message
    assert ASK[route].limit_field not in message
    assert "-" not in message.replace("--context-length", "")


@pytest.mark.parametrize(
    ("fields", "granted"),
    [
        pytest.param({"max_tokens": None, "max_completion_tokens": 3}, 3, id="B08-new-alone"),
        pytest.param({"max_tokens": 3, "max_completion_tokens": 3}, 3, id="B08-equal"),
        pytest.param({"max_tokens": 3, "max_completion_tokens": 5}, None, id="B08-smaller-old"),
        pytest.param({"max_tokens": 5, "max_completion_tokens": 3}, None, id="B08-smaller-new"),
        pytest.param({"max_tokens": True, "max_completion_tokens": 1}, None, id="B08-true-is-not-1"),
    ],
)
@streamed_or_not
def test_chat_has_one_limit_under_two_names(
    server: ScriptedServer, fields: dict[str, Any], granted: int | None, stream: bool
) -> None:
    """B08: max_completion_tokens was ignored, and a capped request wrote 40,000 tokens."""
    response = ask(server.client, CHAT, fields, stream=stream)
    if granted is None:
        assert error_of(response, CHAT, 400, "max_completion_tokens")["code"] == "invalid_parameter_combination"
    else:
        assert response.headers[endpoints.HEADER_MAX_OUTPUT_TOKENS] == str(granted)


@every_route
def test_nothing_is_allocated_from_a_requested_number(server: ScriptedServer, route: str) -> None:
    """B07: an enormous limit reserved memory for an answer of that length, whether it was then refused or granted."""
    numbers = {"LIMIT": 2**31 - 1, "min_tokens": 2**31 - 1, "top_k": 2**31 - 1, "seed": 2**63 - 1}
    ask(server.client, route, numbers)
    before = _resident_bytes()
    for fields in (numbers, *({name: HUGE} for name in ("LIMIT", "n", "top_logprobs", "top_k", "min_tokens", "seed"))):
        ask(server.client, route, fields)
    assert _resident_bytes() - before < 32 * 2**20


def _resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096
