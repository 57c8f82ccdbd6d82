"""Tool calls over HTTP, read by the official SDKs: recorded answers of every format, on the three routes with tools."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from doubles.server import MODEL
from plimsoll_runtime.contract import endpoints
from plimsoll_runtime.text.tool_calls.formats import GRAMMARS
from routes.four_routes import ASK, error_of
from routes.tool_dialects import TOOL_DIALECTS, Heard
from routes.tool_server import ToolServer, tool_server
from text.tool_call_corpus import CORPORA, said

HERMES = [row["name"] for row in CORPORA["hermes"]["answers"]]
EACH_FORMAT = [(name, row) for name in GRAMMARS for row in range(1, 6)]
HUGE = "numbers as written"


@pytest.fixture(scope="module")
def hermes() -> Iterator[ToolServer]:
    with tool_server() as running:
        yield running


@pytest.fixture(scope="module")
def others() -> Iterator[dict[str, ToolServer]]:
    """One server per format, started when it is first asked."""
    running: dict[str, Any] = {}
    yield running
    for context in [each for name, each in running.items() if name.startswith("context ")]:
        context.__exit__(None, None, None)


def heard(server: ToolServer, route: str, row: int, *, stream: bool, **fields: Any) -> Heard:
    dialect = TOOL_DIALECTS[route]
    asked = {"tools": dialect.tools(server.tools), **fields}
    return dialect.ask(server.server.url, f"ask {row};", stream, asked)


def expected_calls(route: str, calls: list[list[str]]) -> list[list[str]]:
    """Messages has values where the others have text."""
    if route != endpoints.MESSAGES:
        return calls
    return [[name, json.dumps(json.loads(arguments))] for name, arguments in calls]


routes_with_tools = pytest.mark.parametrize("route", TOOL_DIALECTS, ids=["chat", "responses", "messages"])
streamed_or_not = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])


@streamed_or_not
@routes_with_tools
@pytest.mark.parametrize("name", HERMES)
def test_the_sdks_read_every_recorded_answer(hermes: ToolServer, name: str, route: str, stream: bool) -> None:
    """B70, B71, B72: arguments, empty arguments, parallel calls with text between, the same in both modes."""
    row = hermes.row(name)
    answer = heard(hermes, route, row, stream=stream)
    recorded = hermes.rows[row]
    dialect = TOOL_DIALECTS[route]
    assert answer.content == recorded["content"]
    if name == HUGE and route == endpoints.MESSAGES:
        assert len(answer.calls) == 1, "the SDK's own numbers cannot hold these, our body does: see below"
    else:
        assert answer.named == expected_calls(route, recorded["calls"])
    assert answer.reason == (dialect.called if recorded["calls"] else dialect.ended)


@streamed_or_not
@pytest.mark.parametrize(("name", "row"), EACH_FORMAT)
def test_every_format_on_chat(others: dict[str, Any], name: str, row: int, stream: bool) -> None:
    if name not in others:
        others[f"context {name}"] = tool_server(name)
        others[name] = others[f"context {name}"].__enter__()
    server: ToolServer = others[name]
    answer = heard(server, endpoints.CHAT_COMPLETIONS, row, stream=stream)
    assert (answer.content, answer.named) == (server.rows[row]["content"], server.rows[row]["calls"])


def test_numbers_stand_in_the_body_as_written(hermes: ToolServer) -> None:
    """The plain body of messages has the arguments as a value, which Python's numbers could not hold."""
    row = hermes.row(HUGE)
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"ask {row};"}],
        "tools": TOOL_DIALECTS[endpoints.MESSAGES].tools(hermes.tools),
    }
    answer = hermes.server.client.post(endpoints.MESSAGES, json=body)
    assert f'"input":{hermes.rows[row]["calls"][0][1]}' in answer.text


@routes_with_tools
def test_ids_are_of_one_call_alone(hermes: ToolServer, route: str) -> None:
    """B72: parallel calls shared an id, or had ids that another request had too."""
    row = hermes.row("B72 three calls with text before and between")
    answers = [heard(hermes, route, row, stream=stream) for stream in (False, True, False)]
    ids = [call_id for answer in answers for call_id, _, _ in answer.calls]
    assert len(set(ids)) == 9
    assert all(re.fullmatch(r"(call|toolu)_[0-9a-f]{24}", call_id) for call_id in ids)


def test_id_and_name_stand_in_the_first_chunk_of_a_call(hermes: ToolServer) -> None:
    """B72, B79: names repeated in later chunks were joined, or overwritten by an empty one."""
    row = hermes.row("B72 three calls with text before and between")
    body = {
        "model": MODEL,
        "stream": True,
        "messages": [{"role": "user", "content": f"ask {row};"}],
        "tools": TOOL_DIALECTS[endpoints.CHAT_COMPLETIONS].tools(hermes.tools),
    }
    lines = hermes.server.client.post(endpoints.CHAT_COMPLETIONS, json=body).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    deltas = [delta for chunk in chunks for delta in chunk["choices"][0]["delta"].get("tool_calls", [])]
    first = [delta for delta in deltas if "id" in delta]
    assert [delta["index"] for delta in first] == [0, 1, 2]
    assert [delta["function"]["name"] for delta in first] == ["f", "get_weather", "f"]
    assert all(set(delta) == {"index", "function"} for delta in deltas if delta not in first)
    assert all(set(delta["function"]) == {"arguments"} for delta in deltas if delta not in first)
    assert len(deltas) > 2 * len(first), "arguments are passed on while they are written"


@routes_with_tools
def test_a_call_cut_by_the_limit_is_none(hermes: ToolServer, route: str) -> None:
    """B73: agents ran calls that the limit had cut, with arguments emptied or repaired."""
    row = hermes.row("B72 three calls with text before and between")
    dialect = TOOL_DIALECTS[route]
    recorded = hermes.rows[row]
    for limit in range(1, 1 + len(recorded["text"]) // 7, 3):
        cut = recorded["text"][: 7 * limit]
        plain = said("hermes", [cut], hermes.tools, was_cut=True)
        for stream in (False, True):
            answer = heard(hermes, route, row, stream=stream, **{dialect.limit: limit})
            assert answer.reason == dialect.cut
            assert answer.content == plain.content
            assert "<" not in answer.content
            if not stream or route == endpoints.RESPONSES:
                assert answer.named == expected_calls(route, plain.calls)


@streamed_or_not
@routes_with_tools
def test_where_no_tool_may_be_called_markup_is_text(hermes: ToolServer, route: str, stream: bool) -> None:
    """B74: `tool_choice: none` still made calls in streams, or deleted text that looked like one."""
    row = hermes.row("one call")
    dialect = TOOL_DIALECTS[route]
    without: list[dict[str, Any]] = [{"tool_choice": dialect.none}, {"tools": []}]
    for fields in without:
        answer = heard(hermes, route, row, stream=stream, **fields)
        assert (answer.content, answer.calls, answer.reason) == (hermes.rows[row]["text"], [], dialect.ended)
        assert "get_weather" not in hermes.prompts[-1]


@streamed_or_not
@routes_with_tools
def test_one_call_at_most_where_the_request_says_so(hermes: ToolServer, route: str, stream: bool) -> None:
    """B80: `parallel_tool_calls: false` was dropped in silence."""
    row = hermes.row("B72 three calls with text before and between")
    dialect = TOOL_DIALECTS[route]
    answer = heard(hermes, route, row, stream=stream, **dialect.one_call)
    assert answer.content == "I look it up.\n"
    assert answer.named == [["f", '{"x": 1}']]
    assert answer.reason == dialect.called


@routes_with_tools
def test_stop_strings_end_text_and_never_a_call(hermes: ToolServer, route: str) -> None:
    """A stop string may neither stand inside a call nor go on behind one."""
    row = hermes.row("B72 three calls with text before and between")
    field = ASK[route].stop_field
    for stop, content, num_calls in [
        ("again", "I look it up.\n\nand ", 2),
        ('"x"', "I look it up.\n\nand again\n", 3),
        ("up.\n\nand", "I look it up.\n\nand again\n", 3),
    ]:
        fields = {field: [stop]} if route == endpoints.MESSAGES else {"extra_body": {field: [stop]}}
        for stream in (False, True):
            answer = heard(hermes, route, row, stream=stream, **fields)
            assert (answer.content, len(answer.calls)) == (content, num_calls)
            assert answer.reason == TOOL_DIALECTS[route].called


def posted(server: ToolServer, route: str, **fields: Any) -> Any:
    return server.server.client.post(route, json={"model": MODEL, **ASK[route].body("ask 0;"), **fields})


@routes_with_tools
def test_a_forced_choice_is_refused_by_name(hermes: ToolServer, route: str) -> None:
    """B75: where forcing cannot be guaranteed it is not pretended; a choice of nothing is a mistake."""
    dialect = TOOL_DIALECTS[route]
    tools = dialect.tools({"f": {}})
    for choice in (dialect.forced, dialect.named("f")):
        error_of(posted(hermes, route, tools=tools, tool_choice=choice), route, 400, "tool_choice")
        error_of(posted(hermes, route, tool_choice=choice), route, 400, "tool_choice")
    error_of(posted(hermes, route, tools=tools, tool_choice=dialect.named("g")), route, 400, "tool_choice")
    for choice in ("sometimes", 7, [], {}, {"type": "allowed_tools"}):
        if route != endpoints.MESSAGES or choice not in ({},):
            error_of(posted(hermes, route, tools=tools, tool_choice=choice), route, 400, "tool_choice")


@routes_with_tools
@pytest.mark.parametrize("name", ["", "a b", "x" * 129, "é", 'f"', "<tool_call>"])
def test_a_wrong_name_is_refused(hermes: ToolServer, route: str, name: str) -> None:
    """B79"""
    tools = [TOOL_DIALECTS[route].tool(name, {"type": "object"})]
    assert "name" in error_of(posted(hermes, route, tools=tools), route, 400)["message"]


@routes_with_tools
def test_a_tool_twice_is_refused(hermes: ToolServer, route: str) -> None:
    tools = [TOOL_DIALECTS[route].tool("f", {})] * 2
    error_of(posted(hermes, route, tools=tools), route, 400, "tools")


@routes_with_tools
def test_the_template_shows_the_tools(hermes: ToolServer, route: str) -> None:
    """B71: a tool without parameters is valid, and is shown with an empty object of them."""
    dialect = TOOL_DIALECTS[route]
    heard(hermes, route, 0, stream=False, tools=[dialect.tool("get_weather", hermes.tools["get_weather"])])
    shown = json.loads(hermes.prompts[-1].partition("[user]")[0])
    function = {"name": "get_weather", "parameters": hermes.tools["get_weather"]}
    assert shown == [{"type": "function", "function": function}]
    bare = dialect.tool("ping", {})
    for place in (bare, bare.get("function", {})):
        place.pop("parameters", None)
        place.pop("input_schema", None)
    assert posted(hermes, route, tools=[bare]).status_code == 200
    assert '"parameters": {"type": "object", "properties": {}}' in hermes.prompts[-1]


def test_without_a_parser_tools_are_refused_and_the_flag_is_named() -> None:
    with tool_server(tool_call_parser="none") as server:
        for route, dialect in TOOL_DIALECTS.items():
            error = error_of(posted(server, route, tools=dialect.tools({"f": {}})), route, 400, "tools")
            assert "--tool-call-parser (spec.parsers.toolCalls)" in error["message"]
            assert posted(server, route, tools=[]).status_code == 200


def test_a_template_without_tools_refuses_them() -> None:
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    with tool_server(template=template) as server:
        for route, dialect in TOOL_DIALECTS.items():
            error = error_of(posted(server, route, tools=dialect.tools({"f": {}})), route, 400, "tools")
            assert "template" in error["message"]


def test_completions_refuse_tools(hermes: ToolServer) -> None:
    tools = TOOL_DIALECTS[endpoints.CHAT_COMPLETIONS].tools({"f": {}})
    error_of(posted(hermes, endpoints.COMPLETIONS, tools=tools), endpoints.COMPLETIONS, 400, "tools")


CALL_ID = "AbC-1"
ARGUMENTS = {"city": "Zürich", "days": [1, {"n": 2}]}
_CHAT_CALL = {"id": CALL_ID, "type": "function", "function": {"name": "f", "arguments": json.dumps(ARGUMENTS)}}
HISTORIES: dict[str, dict[str, Any]] = {
    endpoints.CHAT_COMPLETIONS: {
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": "so", "tool_calls": [_CHAT_CALL]},
            {"role": "tool", "tool_call_id": CALL_ID, "content": "21 C"},
            {"role": "user", "content": "ask 0;"},
        ]
    },
    endpoints.RESPONSES: {
        "input": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": "so"},
            {"type": "function_call", "call_id": CALL_ID, "name": "f", "arguments": json.dumps(ARGUMENTS)},
            {"type": "function_call_output", "call_id": CALL_ID, "output": "21 C"},
            {"role": "user", "content": "ask 0;"},
        ]
    },
    endpoints.MESSAGES: {
        "messages": [
            {"role": "user", "content": "go"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "so"},
                    {"type": "tool_use", "id": CALL_ID, "name": "f", "input": ARGUMENTS},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": CALL_ID, "content": "21 C"},
                    {"type": "text", "text": "ask 0;"},
                ],
            },
        ]
    },
}


def test_calls_and_results_of_earlier_turns_reach_the_template_alike(hermes: ToolServer) -> None:
    for route, history in HISTORIES.items():
        hermes.server.client.post(route, json={"model": MODEL, **history})
    arguments = json.dumps(ARGUMENTS, ensure_ascii=False)
    expected = f"[user]go[assistant]so<{CALL_ID} f {arguments}>[tool]21 C({CALL_ID})[user]ask 0;"
    assert hermes.prompts[-3:] == [expected] * 3


def test_a_response_with_calls_is_continued_with_their_results(hermes: ToolServer) -> None:
    row = hermes.row("one call")
    tools = TOOL_DIALECTS[endpoints.RESPONSES].tools(hermes.tools)
    first = posted(hermes, endpoints.RESPONSES, input=f"ask {row};", tools=tools).json()
    call_id = first["output"][0]["call_id"]
    result = {"type": "function_call_output", "call_id": call_id, "output": "sunny"}
    posted(hermes, endpoints.RESPONSES, input=[result], tools=tools, previous_response_id=first["id"])
    shown = hermes.prompts[-1].partition("[user]")[2]
    assert shown == (
        f'ask {row};[assistant]<{call_id} get_weather {{"city": "Paris", "days": 3}}>[tool]sunny({call_id})'
    )


def test_tools_are_counted(hermes: ToolServer) -> None:
    tools = TOOL_DIALECTS[endpoints.MESSAGES].tools({"f": {}})
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
    without = hermes.server.client.post(endpoints.COUNT_TOKENS, json=body).json()["input_tokens"]
    counted = hermes.server.client.post(endpoints.COUNT_TOKENS, json={**body, "tools": tools}).json()["input_tokens"]
    assert counted - without == len(
        '[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]'
    )


def test_what_only_openai_runs_is_left_out_and_counted(hermes: ToolServer) -> None:
    """Codex offers these by default; every other kind is refused by name."""
    tools = [{"type": "web_search"}, TOOL_DIALECTS[endpoints.RESPONSES].tool("f", {})]
    assert posted(hermes, endpoints.RESPONSES, tools=tools).status_code == 200
    assert "web_search" not in hermes.prompts[-1]
    for route, kind in ((endpoints.RESPONSES, "file_search"), (endpoints.CHAT_COMPLETIONS, "custom")):
        error_of(posted(hermes, route, tools=[{"type": kind}]), route, 400, "tools.0.type")
    bash = [{"type": "bash_20250124", "name": "bash"}]
    error_of(posted(hermes, endpoints.MESSAGES, tools=bash), endpoints.MESSAGES, 400, "tools.0.type")


def test_every_token_has_its_log_probability(hermes: ToolServer) -> None:
    row = hermes.row("B72 three calls with text before and between")
    tools = TOOL_DIALECTS[endpoints.CHAT_COMPLETIONS].tools(hermes.tools)
    body = {"messages": [{"role": "user", "content": f"ask {row};"}], "tools": tools, "logprobs": True}
    plain = posted(hermes, endpoints.CHAT_COMPLETIONS, **body).json()
    whole = plain["choices"][0]["logprobs"]["content"]
    assert len(whole) == plain["usage"]["completion_tokens"]
    text = posted(hermes, endpoints.CHAT_COMPLETIONS, **body, stream=True).text
    chunks = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    streamed = [entry for chunk in chunks for entry in (chunk["choices"][0]["logprobs"] or {}).get("content", [])]
    assert streamed == whole


def test_each_choice_has_its_own_calls(hermes: ToolServer) -> None:
    row = hermes.row("B72 three calls with text before and between")
    tools = TOOL_DIALECTS[endpoints.CHAT_COMPLETIONS].tools(hermes.tools)
    body = {"messages": [{"role": "user", "content": f"ask {row};"}], "tools": tools, "n": 3}
    choices = posted(hermes, endpoints.CHAT_COMPLETIONS, **body).json()["choices"]
    calls = [call for choice in choices for call in choice["message"]["tool_calls"]]
    assert [call["function"]["name"] for call in calls] == ["f", "get_weather", "f"] * 3
    assert len({call["id"] for call in calls}) == 9
