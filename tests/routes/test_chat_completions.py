"""What a chat body becomes, and what is said when it is wrong: one table per kind of fault."""

from typing import Any

import pytest

from plimsoll_runtime.refusal import Refusal, RefusalCode
from plimsoll_runtime.request import ChatPrompt, GenerationRequest, WireValue
from plimsoll_runtime.routes.chat_completions import CHAT_COMPLETIONS

USER = {"role": "user", "content": "hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"city":"Paris"}'}}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}


def convert(headers: dict[str, str] | None = None, **fields: Any) -> GenerationRequest | Refusal:
    return CHAT_COMPLETIONS.to_request({"model": "m", "messages": [USER], **fields}, headers or {})


def accepted(**fields: Any) -> GenerationRequest:
    request = convert(**fields)
    assert isinstance(request, GenerationRequest), request
    return request


def refused(**fields: Any) -> Refusal:
    refusal = convert(**fields)
    assert isinstance(refusal, Refusal), refusal
    return refusal


def messages_of(*messages: Any) -> list[dict[str, Any]]:
    prompt = accepted(messages=list(messages)).prompts[0]
    assert isinstance(prompt, ChatPrompt)
    return [dict(message) for message in prompt.messages]


def test_a_bare_body_gives_no_number() -> None:
    request = accepted()
    assert request.route == "/v1/chat/completions"
    assert (request.model, request.prompt_param, request.wire) == ("m", "messages", {})
    assert (request.stream, request.include_usage, request.echo) == (False, False, False)
    assert request.over_budget is None
    assert request.unknown_fields == ()


def test_numbers_pass_through_as_they_came() -> None:
    """Admission judges them for all routes; a converter that coerced `true` or `"8"` would judge first (B06)."""
    fields = {
        "max_completion_tokens": "8",
        "temperature": True,
        "top_k": -1,
        "logit_bias": [[5, 1]],
        "stop": [None],
        "ignore_eos": "yes",
        "n": 2**70,
        "logprobs": 1,
        "top_logprobs": 99,
        "seed": None,
    }
    wire = accepted(**fields).wire
    assert wire.pop("requested_output_tokens") == WireValue("max_completion_tokens", "8")  # type: ignore[attr-defined]
    sent = {name: value for name, value in fields.items() if name not in {"max_completion_tokens", "seed"}}
    assert wire == {name: WireValue(name, value) for name, value in sent.items()}


LIMITS = [
    pytest.param({"max_completion_tokens": 8}, "max_completion_tokens", 8, id="B08-new-name"),
    pytest.param({"max_tokens": 8}, "max_tokens", 8, id="B08-deprecated-name"),
    pytest.param({"max_tokens": None, "max_completion_tokens": 8}, "max_completion_tokens", 8, id="B08-null-beside"),
    pytest.param({"max_tokens": 8, "max_completion_tokens": 8.0}, "max_completion_tokens", 8.0, id="B08-equal"),
]


@pytest.mark.parametrize(("fields", "param", "value"), LIMITS)
def test_the_output_limit_has_two_names(fields: dict[str, Any], param: str, value: Any) -> None:
    """`max_completion_tokens` used to be ignored: a capped request produced 40,000 tokens."""
    assert accepted(**fields).wire["requested_output_tokens"] == WireValue(param, value)


@pytest.mark.parametrize(("new", "old"), [(8, 64), (64, 8), (1, True), (8, "8")], ids=lambda value: f"B08-{value!r}")
def test_two_different_limits_are_refused(new: Any, old: Any) -> None:
    refusal = refused(max_completion_tokens=new, max_tokens=old)
    assert refusal.code == "invalid_parameter_combination"
    assert refusal.param == "max_completion_tokens"
    assert "max_completion_tokens" in refusal.message
    assert "max_tokens" in refusal.message.replace("max_completion_tokens", "")


NOT_MESSAGES = [
    pytest.param([], "invalid_value", id="B61-empty"),
    pytest.param(None, "missing_required_parameter", id="B61-null"),
    pytest.param({}, "invalid_type", id="B61-object"),
    pytest.param("hi", "invalid_type", id="B61-string"),
    pytest.param([{}], "missing_required_parameter", id="B61-no-role"),
    pytest.param([None], "invalid_type", id="B61-null-message"),
    pytest.param([{"role": "robot", "content": "x"}], "invalid_value", id="B61-unknown-role"),
    pytest.param([{"role": ["user"], "content": "x"}], "invalid_value", id="B61-role-of-wrong-type"),
]


@pytest.mark.parametrize(("messages", "code"), NOT_MESSAGES)
def test_what_is_not_a_conversation_names_messages(messages: Any, code: RefusalCode) -> None:
    """An empty list used to give a 500 or a generated answer."""
    refusal = refused(messages=messages)
    assert (refusal.param, refusal.code) == ("messages", code)


def test_missing_messages_names_messages() -> None:
    refusal = CHAT_COMPLETIONS.to_request({"model": "m"}, {})
    assert isinstance(refusal, Refusal)
    assert (refusal.param, refusal.code) == ("messages", "missing_required_parameter")


REQUIRED = "missing_required_parameter"
WRONG_CONTENT = [
    pytest.param({"role": "user", "content": None}, "messages.0.content", REQUIRED, id="B62-user-null"),
    pytest.param({"role": "user"}, "messages.0.content", REQUIRED, id="B62-user-missing"),
    pytest.param({"role": "user", "content": []}, "messages.0.content", "invalid_value", id="B62-user-no-part"),
    pytest.param({"role": "system", "content": []}, "messages.0.content", "invalid_value", id="B62-system-no-part"),
    pytest.param({"role": "user", "content": 7}, "messages.0.content", "invalid_type", id="number"),
    pytest.param({"role": "assistant", "content": None}, "messages.0.content", REQUIRED, id="assistant-says-nothing"),
    pytest.param(
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
        "messages.0.content.0",
        "unsupported_parameter",
        id="B63-image",
    ),
    pytest.param(
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "a"}, {"type": "hologram"}]},
        "messages.0.content.1",
        "unsupported_parameter",
        id="B63-unknown-part",
    ),
    pytest.param({"role": "user", "content": ["a"]}, "messages.0.content.0", "invalid_type", id="part-is-a-string"),
    pytest.param({"role": "user", "content": [{}]}, "messages.0.content.0", "invalid_type", id="part-without-type"),
    pytest.param(
        {"role": "user", "content": [{"type": "text", "text": None}]},
        "messages.0.content.0.text",
        "invalid_type",
        id="text-null",
    ),
]


@pytest.mark.parametrize(("message", "param", "code"), WRONG_CONTENT)
def test_wrong_content_names_its_place(message: dict[str, Any], param: str, code: RefusalCode) -> None:
    """Null content used to raise inside the template; parts were dropped or printed as a Python list."""
    refusal = refused(messages=[message])
    assert (refusal.param, refusal.code) == (param, code)
    assert param in refusal.message


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_parts_are_joined_with_nothing_between(role: str) -> None:
    """B63: parts and the same text as one string are the same prompt, in every role."""
    parts = [{"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "B"}]
    as_parts = messages_of({"role": role, "content": parts, "tool_call_id": "c"})
    assert as_parts == messages_of({"role": role, "content": "AB", "tool_call_id": "c"})
    assert as_parts[0]["content"] == "AB"


EMPTY_BUT_VALID = [
    pytest.param({"role": "user", "content": ""}, id="B62-user"),
    pytest.param({"role": "assistant", "content": ""}, id="B62-assistant"),
    pytest.param({"role": "tool", "tool_call_id": "c", "content": ""}, id="B62-tool"),
    pytest.param({"role": "system", "content": "be kind"}, id="B61-system-only"),
]


@pytest.mark.parametrize("message", EMPTY_BUT_VALID)
def test_empty_text_is_text(message: dict[str, Any]) -> None:
    assert messages_of(message) == [message]


def test_developer_speaks_as_system_anywhere() -> None:
    """B64: order and late instructions are the template's affair."""
    roles = ["developer", "user", "developer", "system", "user"]
    assert [message["role"] for message in messages_of(*({"role": role, "content": "x"} for role in roles))] == [
        "system",
        "user",
        "system",
        "system",
        "user",
    ]


CALLING = [
    pytest.param({"content": None}, None, id="B65-null"),
    pytest.param({}, None, id="B65-absent"),
    pytest.param({"content": ""}, "", id="B65-empty"),
    pytest.param({"content": "text"}, "text", id="B65-text"),
]


@pytest.mark.parametrize(("fields", "content"), CALLING)
def test_an_assistant_that_called_tools_may_have_no_content(fields: dict[str, Any], content: str | None) -> None:
    """Replayed turns with calls and null content used to be refused, sometimes with an empty 400."""
    turn = {"role": "assistant", "tool_calls": [CALL], **fields}
    _, assistant, result, _ = messages_of(USER, turn, RESULT, USER)
    assert assistant["content"] == content
    assert assistant["tool_calls"][0]["id"] == result["tool_call_id"] == "call_1"


@pytest.mark.parametrize("messages", [[USER, RESULT], [USER, {"role": "assistant", "tool_calls": [CALL]}, USER]])
def test_calls_and_results_need_not_match(messages: list[Any]) -> None:
    """B65: an unknown id and a missing result are rendered as they came."""
    assert len(messages_of(*messages)) == len(messages)


ARGUMENTS = [
    pytest.param('{"city":"Paris"}', {"city": "Paris"}, id="B66-object"),
    pytest.param({"city": "Paris"}, {"city": "Paris"}, id="mapping"),
    pytest.param('{"city":', '{"city":', id="B66-cut"),
    pytest.param("[1]", "[1]", id="not-an-object"),
    pytest.param("", "", id="empty"),
    pytest.param('{"x":NaN}', '{"x":NaN}', id="not-json"),
    pytest.param("[" * 100_000, "[" * 100_000, id="deep"),
]


@pytest.mark.parametrize(("arguments", "expected"), ARGUMENTS)
def test_arguments_reach_the_template_with_one_level_of_quoting(arguments: Any, expected: Any) -> None:
    """A JSON string given to a template that quotes it taught the model to emit ever deeper quoting."""
    turn = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": arguments}}]}
    assert messages_of(turn)[0]["tool_calls"][0]["function"] == {"name": "f", "arguments": expected}


WRONG_TURNS: list[Any] = [
    pytest.param({"tool_calls": {}}, "messages.0.tool_calls", id="calls-not-a-list"),
    pytest.param({"tool_calls": [None]}, "messages.0.tool_calls.0", id="call-null"),
    pytest.param({"tool_calls": [{"id": "1"}]}, "messages.0.tool_calls.0.function", id="call-without-function"),
    pytest.param({"tool_calls": [{**CALL, "id": 1}]}, "messages.0.tool_calls.0.id", id="call-id"),
    pytest.param({"tool_calls": [{**CALL, "type": "custom"}]}, "messages.0.tool_calls.0.type", id="call-type"),
    pytest.param(
        {"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": 7}}]},
        "messages.0.tool_calls.0.function.arguments",
        id="arguments-number",
    ),
    pytest.param(
        {"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"a":"\\ud83d"}'}}]},
        "messages.0.tool_calls.0.function.arguments",
        id="B59-surrogate-inside-arguments",
    ),
    pytest.param({"content": "x", "function_call": {"name": "f"}}, "messages.0.function_call", id="function-call"),
    pytest.param({"content": "x", "refusal": "no"}, "messages.0.refusal", id="refusal"),
    pytest.param({"content": "x", "audio": {"id": "a"}}, "messages.0.audio", id="audio"),
    pytest.param({"content": "x", "name": 5}, "messages.0.name", id="name"),
    pytest.param({"role": "tool", "content": "x"}, "messages.0.tool_call_id", id="result-of-nothing"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG_TURNS)
def test_a_wrong_turn_names_the_field(fields: dict[str, Any], param: str) -> None:
    refusal = refused(messages=[{"role": "assistant", **fields}])
    assert refusal.param == param
    assert param in refusal.message


def test_an_own_answer_can_be_sent_back() -> None:
    """B69: reasoning goes to the template as reasoning, and nulls that an SDK dumps are nothing."""
    sent_back: dict[str, Any] = {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "refusal": None,
        "audio": None,
        "annotations": [],
        "tool_calls": None,
    }
    assert messages_of(USER, sent_back)[1] == {"role": "assistant", "content": "", "reasoning_content": "hm"}


UNSUPPORTED = [
    ("functions", [{"name": "f"}]),
    ("audio", {"voice": "alloy", "format": "wav"}),
    ("modalities", ["text", "audio"]),
    ("prediction", {"type": "content", "content": "x"}),
    ("web_search_options", {}),
    ("store", True),
    ("service_tier", "priority"),
    ("verbosity", "low"),
    ("thinking", {"type": "enabled", "budget_tokens": 1024}),
    ("guided_json", {}),
    ("echo", True),
    ("best_of", 2),
]


@pytest.mark.parametrize(("name", "value"), UNSUPPORTED, ids=lambda value: f"B80-{str(value)[:24]}")
def test_a_field_that_would_change_the_answer_is_refused_by_name(name: str, value: Any) -> None:
    """Such flags used to be dropped silently, because the request model ignored what it did not know."""
    refusal = refused(**{name: value})
    assert (refusal.param, refusal.code) == (name, "unsupported_parameter")


def test_values_that_change_nothing_are_accepted() -> None:
    request = accepted(
        tools=[],
        tool_choice="none",
        parallel_tool_calls=False,
        response_format={"type": "text"},
        n=1,
        store=False,
        metadata={"a": "b"},
        user="u",
        service_tier="auto",
        prompt_cache_key="k",
        safety_identifier="s",
        reasoning_effort=None,
        modalities=["text"],
        max_tokens=None,
    )
    assert request.unknown_fields == ()


def test_unknown_fields_are_reported_and_never_refused() -> None:
    """B80: a typo is ignored by one documented rule on all routes, and counted."""
    request = accepted(max_token=8, stream=True, stream_options={"continuous_usage_stats": True})
    assert request.unknown_fields == ("max_token", "stream_options.continuous_usage_stats")


THINKING_OFF = [{"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}]


@pytest.mark.parametrize("fields", THINKING_OFF)
def test_thinking_can_be_switched_off(fields: dict[str, Any]) -> None:
    prompt = accepted(**fields).prompts[0]
    assert isinstance(prompt, ChatPrompt)
    assert prompt.template_arguments == {"enable_thinking": False}


def test_an_effort_asks_for_reasoning_and_reaches_the_template() -> None:
    request = accepted(reasoning_effort="low")
    prompt = request.prompts[0]
    assert isinstance(prompt, ChatPrompt)
    assert prompt.template_arguments == {"enable_thinking": True, "reasoning_effort": "low"}
    assert request.reasoning_param == "reasoning_effort"
    assert accepted(reasoning_effort="none").reasoning_param is None
    assert refused(reasoning_effort="lots").param == refused(reasoning_effort=1).param == "reasoning_effort"


def test_template_arguments_reach_the_template() -> None:
    prompt = accepted(chat_template_kwargs={"enable_thinking": True, "style": [1]}).prompts[0]
    assert isinstance(prompt, ChatPrompt)
    assert prompt.template_arguments == {"enable_thinking": True, "style": [1]}


@pytest.mark.parametrize(
    ("value", "param"),
    [
        pytest.param([], "chat_template_kwargs", id="list"),
        pytest.param({"enable_thinking": "no"}, "chat_template_kwargs.enable_thinking", id="B83-not-boolean"),
        pytest.param({"messages": []}, "chat_template_kwargs.messages", id="forged-messages"),
    ],
)
def test_wrong_template_arguments_are_refused(value: Any, param: str) -> None:
    assert refused(chat_template_kwargs=value).param == param


WRONG_ENVELOPES = [
    pytest.param({"model": None}, "model", id="model-null"),
    pytest.param({"model": ""}, "model", id="model-empty"),
    pytest.param({"model": 7}, "model", id="model-number"),
    pytest.param({"stream": "true"}, "stream", id="stream-string"),
    pytest.param({"stream": 1}, "stream", id="stream-number"),
    pytest.param({"stream": True, "stream_options": []}, "stream_options", id="options-list"),
    pytest.param(
        {"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage", id="usage-number"
    ),
    pytest.param({"stream_options": {}}, "stream_options", id="B43-options-without-stream"),
    pytest.param({"stream": False, "stream_options": {"include_usage": True}}, "stream_options", id="B43-no-stream"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG_ENVELOPES)
def test_a_wrong_envelope_names_its_field(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


def test_a_missing_model_is_a_missing_parameter() -> None:
    refusal = CHAT_COMPLETIONS.to_request({"messages": [USER]}, {})
    assert isinstance(refusal, Refusal)
    assert (refusal.param, refusal.code) == ("model", "missing_required_parameter")


@pytest.mark.parametrize(
    ("options", "include_usage"),
    [(None, False), ({}, False), ({"include_usage": False}, False), ({"include_usage": True}, True)],
)
def test_usage_is_streamed_only_where_asked_for(options: Any, include_usage: bool) -> None:
    request = accepted(stream=True, stream_options=options)
    assert (request.stream, request.include_usage) == (True, include_usage)


def test_the_header_speaks_raw() -> None:
    request = convert(headers={"x-plimsoll-over-budget": "Perhaps"})
    assert isinstance(request, GenerationRequest)
    assert request.over_budget == "Perhaps"
