"""What a `/v1/responses` body becomes, and what is said when it is wrong: one table per kind of fault."""

from typing import Any

import pytest
from hypothesis import given

from plimsoll_runtime.refusal import Refusal, RefusalCode
from plimsoll_runtime.request import ChatPrompt, GenerationRequest, WireValue
from plimsoll_runtime.routes.responses import KNOWN, RESPONSES
from routes.any_json import bodies

USER = {"role": "user", "content": "hi"}
A, B = {"type": "input_text", "text": "A"}, {"type": "input_text", "text": "B"}
IMAGE = {"type": "input_image", "image_url": "data:,"}
CALL = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city":"Paris"}'}
CALLED = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}
ANSWERED = {
    "type": "message",
    "id": "msg_1",
    "status": "completed",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}],
}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}


def convert(headers: dict[str, str] | None = None, **fields: Any) -> GenerationRequest | Refusal:
    return RESPONSES.to_request({"model": "m", "input": "hi", **fields}, headers or {})


def accepted(headers: dict[str, str] | None = None, **fields: Any) -> GenerationRequest:
    request = convert(headers, **fields)
    assert isinstance(request, GenerationRequest), request
    return request


def refused(**fields: Any) -> Refusal:
    refusal = convert(**fields)
    assert isinstance(refusal, Refusal), refusal
    return refusal


def prompt_of(request: GenerationRequest) -> ChatPrompt:
    prompt = request.prompts[0]
    assert isinstance(prompt, ChatPrompt)
    return prompt


def messages_of(*items: Any, **fields: Any) -> list[dict[str, Any]]:
    return [dict(message) for message in prompt_of(accepted(input=list(items), **fields)).messages]


def test_a_bare_body_asks_for_nothing_else() -> None:
    request = accepted()
    assert (request.route, request.model, request.prompt_param) == ("/v1/responses", "m", "input")
    assert request.prompts == (ChatPrompt((USER,)),)
    assert (request.wire, request.stream, request.over_budget, request.unknown_fields) == ({}, False, None, ())
    assert request.dialect_options["store"] is True, "the API stores where nothing is said"


def test_numbers_pass_through_as_they_came() -> None:
    """Admission judges them for all routes (B06)."""
    wire = accepted(max_output_tokens=True, temperature="1", stop=[3], ignore_eos="yes", min_p=2, seed=None).wire
    assert wire == {
        "requested_output_tokens": WireValue("max_output_tokens", True),
        "temperature": WireValue("temperature", "1"),
        "stop": WireValue("stop", [3]),
        "ignore_eos": WireValue("ignore_eos", "yes"),
        "min_p": WireValue("min_p", 2),
    }


def test_the_header_and_the_switches_are_copied() -> None:
    options = {"include_obfuscation": False}
    request = accepted({"x-plimsoll-over-budget": "refuse"}, stream=True, stream_options=options, store=False, typo=1)
    assert (request.over_budget, request.stream, request.unknown_fields) == ("refuse", True, ("typo",))
    assert request.dialect_options["store"] is False


@pytest.mark.parametrize(
    ("value", "code"),
    [
        pytest.param([], "invalid_value", id="B61 empty list"),
        pytest.param(None, "missing_required_parameter", id="B61 null"),
        pytest.param({}, "invalid_type", id="B61 object"),
        pytest.param([{}], "missing_required_parameter", id="B61 empty item"),
        pytest.param([None], "invalid_type", id="B61 null item"),
        pytest.param(["hi"], "invalid_type", id="string as item"),
        pytest.param([{"role": "robot", "content": "x"}], "invalid_value", id="B61 unknown role"),
        pytest.param([{"role": ["user"], "content": "x"}], "invalid_value", id="role of a wrong type"),
    ],
)
def test_what_is_no_conversation_is_refused(value: Any, code: RefusalCode) -> None:
    """Others answered an empty list with a 500 or a generated answer."""
    refusal = refused(input=value)
    assert (refusal.code, refusal.param) == (code, "input")


@pytest.mark.parametrize("name", ["model", "input"])
def test_what_is_required_is_missed_by_name(name: str) -> None:
    """B61 missing."""
    body = {"model": "m", "input": "hi"}
    del body[name]
    refusal = RESPONSES.to_request(body, {})
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.param) == ("missing_required_parameter", name)


@pytest.mark.parametrize(
    ("content", "code", "param"),
    [
        pytest.param(None, "missing_required_parameter", "input.0.content", id="B62 null"),
        pytest.param([], "invalid_value", "input.0.content", id="B62 no part"),
        pytest.param(7, "invalid_type", "input.0.content", id="number"),
        pytest.param([A, "B"], "invalid_type", "input.0.content.1", id="bare string as part"),
        pytest.param([{"type": "input_text"}], "invalid_type", "input.0.content.0.text", id="no text"),
        pytest.param([A, IMAGE], "unsupported_parameter", "input.0.content.1", id="B63 image"),
        pytest.param([{"type": "input_file"}], "unsupported_parameter", "input.0.content.0", id="B63 file"),
        pytest.param([{"type": "hologram"}], "unsupported_parameter", "input.0.content.0", id="B63 unknown"),
    ],
)
def test_content_that_is_no_text_is_refused_by_its_path(content: Any, code: RefusalCode, param: str) -> None:
    """Others dropped such parts, printed them as Python lists, or answered 500."""
    refusal = refused(input=[{"role": "user", "content": content}])
    assert (refusal.code, refusal.param) == (code, param)


@pytest.mark.parametrize(
    ("item", "code", "param"),
    [
        ({"role": "user"}, "missing_required_parameter", "input.0.content"),
        ({"type": "item_reference", "id": "msg_1"}, "unsupported_parameter", "input.0"),
        ({"type": "web_search_call", "id": "ws_1"}, "unsupported_parameter", "input.0"),
        ({"type": 7}, "unsupported_parameter", "input.0"),
        (CALL | {"arguments": {}}, "invalid_type", "input.0.arguments"),
        (CALL | {"arguments": '{"a":"\\ud83d"}'}, "invalid_value", "input.0.arguments"),
        ({"type": "function_call", "name": "f", "arguments": ""}, "missing_required_parameter", "input.0.call_id"),
        (OUTPUT | {"output": None}, "missing_required_parameter", "input.0.output"),
        (OUTPUT | {"output": [IMAGE]}, "unsupported_parameter", "input.0.output.0"),
        ({"type": "reasoning", "content": [{"type": "reasoning_text"}]}, "invalid_type", "input.0.content.0.text"),
    ],
    ids=[
        "B62 missing content",
        "reference",
        "call of another tool",
        "type of a wrong type",
        "arguments as object",
        "B59 surrogate in arguments",
        "call without id",
        "null output",
        "B63 image output",
        "reasoning without text",
    ],
)
def test_an_item_that_cannot_be_shown_is_refused_by_its_path(item: Any, code: RefusalCode, param: str) -> None:
    refusal = refused(input=[item])
    assert (refusal.code, refusal.param) == (code, param)


def assistant(content: str | None, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        pytest.param([{"role": "user", "content": ""}], [{"role": "user", "content": ""}], id="B62 empty user"),
        pytest.param([OUTPUT | {"output": ""}], [RESULT | {"content": ""}], id="B62 empty output"),
        pytest.param([{"role": "user", "content": [A, B]}], [{"role": "user", "content": "AB"}], id="B63 user"),
        pytest.param([{"role": "system", "content": [A, B]}], [{"role": "system", "content": "AB"}], id="B63 system"),
        pytest.param([OUTPUT | {"output": [A, B]}], [RESULT | {"content": "AB"}], id="B63 output"),
        pytest.param(
            [USER, {"role": "developer", "content": "A"}, USER],
            [USER, {"role": "system", "content": "A"}, USER],
            id="B64 late developer",
        ),
        pytest.param([USER, ANSWERED, USER], [USER, assistant("Hello"), USER], id="an answer as it was given"),
        pytest.param(
            [USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}],
            [USER, assistant("No.")],
            id="a refusal is text",
        ),
        pytest.param([USER, USER], [USER, USER], id="turns of one role stay as they are"),
        pytest.param(
            [USER, CALL, OUTPUT], [USER, assistant(None, tool_calls=[CALLED]), RESULT], id="B65 call without text"
        ),
        pytest.param([ANSWERED, CALL], [assistant("Hello", tool_calls=[CALLED])], id="B65 call after text"),
        pytest.param(
            [CALL, CALL, OUTPUT, OUTPUT],
            [assistant(None, tool_calls=[CALLED, CALLED]), RESULT, RESULT],
            id="B65 two calls",
        ),
        pytest.param([OUTPUT], [RESULT], id="B65 output without a call"),
        pytest.param(
            [CALL | {"arguments": "not json"}],
            [assistant(None, tool_calls=[CALLED | {"function": {"name": "weather", "arguments": "not json"}}])],
            id="arguments that do not parse stay a string",
        ),
        pytest.param([REASONING, ANSWERED], [assistant("Hello", reasoning_content="hm")], id="B69 reasoning, text"),
        pytest.param(
            [ANSWERED, REASONING, CALL],
            [assistant("Hello"), assistant(None, reasoning_content="hm", tool_calls=[CALLED])],
            id="B69 reasoning, call",
        ),
        pytest.param(
            [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "content": None}, ANSWERED],
            [assistant("Hello", reasoning_content="s")],
            id="B69 a summary alone",
        ),
        pytest.param(
            [{"type": "reasoning", "summary": [], "encrypted_content": "x"}, ANSWERED],
            [assistant("Hello")],
            id="B69 encrypted alone",
        ),
        pytest.param([REASONING], [assistant("", reasoning_content="hm")], id="B69 reasoning that was cut"),
        pytest.param(
            [REASONING, USER, ANSWERED],
            [assistant("", reasoning_content="hm"), USER, assistant("Hello")],
            id="B69 reasoning stays before what came after it",
        ),
    ],
)
def test_items_are_normalised(items: list[Any], expected: list[Any]) -> None:
    assert messages_of(*items) == expected


def test_instructions_stand_first() -> None:
    assert messages_of(USER, instructions="Be brief.") == [{"role": "system", "content": "Be brief."}, USER]
    assert messages_of(USER, instructions="") == [USER]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"truncation": "last"}, "truncation"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"moderation": {"model": "x"}}, "moderation"),
        ({"text": {"verbosity": "high"}}, "text.verbosity"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"n": 2}, "n"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_would_change_the_answer_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    """B80: others dropped such fields silently."""
    refusal = refused(**fields)
    assert (refusal.code, refusal.param) == ("unsupported_parameter", param)
    assert param in refusal.message


@pytest.mark.parametrize(
    "fields",
    [
        {"background": False},
        {"truncation": "disabled"},
        {"tools": []},
        {"tool_choice": "auto"},
        {"service_tier": "auto"},
        {"text": {"format": {"type": "text"}, "verbosity": "medium"}},
        {"reasoning": {"effort": None, "summary": "auto"}},
        {"include": ["reasoning.encrypted_content", "file_search_call.results"]},
        {"parallel_tool_calls": False},
        {"metadata": {"a": "b"}},
        {"prompt_cache_key": "k"},
        {"safety_identifier": "s"},
        {"client_metadata": {"x": 1}},
        {"top_logprobs": 0},
        {"store": None, "conversation": None, "temperature": None, "previous_response_id": None},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_changes_nothing_is_accepted(fields: dict[str, Any]) -> None:
    """Each stands in the default body of a real client, or is the API's own default."""
    request = accepted(**fields)
    assert (request.prompts, request.unknown_fields) == (accepted().prompts, ())


def test_an_effort_asks_for_reasoning_and_reaches_the_template() -> None:
    request = accepted(reasoning={"effort": "high", "summary": "auto"})
    assert prompt_of(request).template_arguments == {"enable_thinking": True, "reasoning_effort": "high"}
    assert request.reasoning_param == "reasoning.effort"
    assert refused(reasoning={"effort": ["high"]}).param == "reasoning.effort"


def test_reasoning_can_be_turned_off() -> None:
    assert prompt_of(accepted(reasoning={"effort": "none"})).template_arguments == {"enable_thinking": False}
    assert prompt_of(accepted(chat_template_kwargs={"style": "x"})).template_arguments == {"style": "x"}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"model": ""}, "invalid_value", "model"),
        ({"model": 7}, "invalid_type", "model"),
        ({"stream": "true"}, "invalid_type", "stream"),
        ({"stream_options": {}}, "invalid_parameter_combination", "stream_options"),
        ({"store": "no"}, "invalid_type", "store"),
        ({"instructions": [USER]}, "invalid_type", "instructions"),
        ({"metadata": {"a": 1}}, "invalid_type", "metadata.a"),
        ({"text": "plain"}, "invalid_type", "text"),
        ({"include": "all"}, "invalid_type", "include"),
        ({"include": ["everything"]}, "invalid_value", "include.0"),
        ({"previous_response_id": 7}, "invalid_type", "previous_response_id"),
        ({"top_logprobs": 2}, "invalid_parameter_combination", "top_logprobs"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_shape_is_refused_by_its_path(fields: dict[str, Any], code: RefusalCode, param: str) -> None:
    refusal = refused(**fields)
    assert (refusal.code, refusal.param) == (code, param)


def test_logprobs_are_asked_for_by_include() -> None:
    wire = accepted(include=["message.output_text.logprobs"], top_logprobs=2).wire
    assert wire == {"logprobs": WireValue("include", True), "top_logprobs": WireValue("top_logprobs", 2)}


WORDS = ["role", "user", "assistant", "content", "type", "text", "message", "input_text", "output_text", "reasoning"]


@given(bodies(KNOWN, [*WORDS, "function_call", "function_call_output", "call_id", "name", "arguments", "output", "{}"]))
def test_no_body_raises(body: dict[str, Any]) -> None:
    """Whatever JSON was sent, a client gets a request or a sentence, never a 500 (B61 and its kin)."""
    outcome = RESPONSES.to_request(body, {})
    assert isinstance(outcome, GenerationRequest | Refusal)
    assert isinstance(outcome, GenerationRequest) or outcome.message.isprintable()
