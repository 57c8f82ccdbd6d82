"""What a `/v1/messages` body becomes, and what is said when it is wrong: one table per kind of fault."""

from typing import Any

import pytest
from hypothesis import given

from plimsoll_runtime.refusal import Refusal, RefusalCode
from plimsoll_runtime.request import ChatPrompt, GenerationRequest, WireValue
from plimsoll_runtime.routes.messages import KNOWN, MESSAGES, to_count_request
from routes.any_json import bodies

USER = {"role": "user", "content": "hi"}
NEW_VERSION = {"anthropic-version": "2026-10-21"}
A, B = {"type": "text", "text": "A"}, {"type": "text", "text": "B"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}}
CALLED = {"id": "toolu_1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}


def convert(headers: dict[str, str] | None = None, **fields: Any) -> GenerationRequest | Refusal:
    return MESSAGES.to_request({"model": "m", "max_tokens": 64, "messages": [USER], **fields}, headers or {})


def accepted(headers: dict[str, str] | None = None, **fields: Any) -> GenerationRequest:
    request = convert(headers, **fields)
    assert isinstance(request, GenerationRequest), request
    return request


def refused(headers: dict[str, str] | None = None, **fields: Any) -> Refusal:
    refusal = convert(headers, **fields)
    assert isinstance(refusal, Refusal), refusal
    return refusal


def prompt_of(request: GenerationRequest) -> ChatPrompt:
    prompt = request.prompts[0]
    assert isinstance(prompt, ChatPrompt)
    return prompt


def messages_of(*messages: Any, **fields: Any) -> list[dict[str, Any]]:
    """The normalised messages; a user turn at the end keeps an assistant's turn from being a prefill."""
    prompt = prompt_of(accepted(messages=[*messages, USER], **fields))
    assert prompt.messages[-1] == USER
    return [dict(message) for message in prompt.messages[:-1]]


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def test_a_bare_body_asks_for_nothing_else() -> None:
    request = MESSAGES.to_request({"model": "m", "messages": [USER]}, {})
    assert request == GenerationRequest(
        route="/v1/messages", model="m", prompt_param="messages", prompts=(ChatPrompt((USER,)),)
    )


def test_numbers_pass_through_as_they_came() -> None:
    """Admission judges them for all routes; a converter that made `true` a 1 would judge first (B06)."""
    wire = accepted(max_tokens=True, temperature="1", top_k=-1, stop_sequences=[3], ignore_eos="yes", seed=None).wire
    assert wire == {
        "requested_output_tokens": WireValue("max_tokens", True),
        "stop": WireValue("stop_sequences", [3]),
        "temperature": WireValue("temperature", "1"),
        "top_k": WireValue("top_k", -1),
        "ignore_eos": WireValue("ignore_eos", "yes"),
    }


def test_the_header_and_the_switches_are_copied() -> None:
    request = accepted({"x-plimsoll-over-budget": "refuse"}, stream=True, typo_field=1)
    assert (request.over_budget, request.stream, request.unknown_fields) == ("refuse", True, ("typo_field",))


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        pytest.param([], "invalid_value", id="B61 empty list"),
        pytest.param(None, "invalid_type", id="B61 null"),
        pytest.param({}, "invalid_type", id="B61 object"),
        pytest.param("hi", "invalid_type", id="B61 string"),
        pytest.param([{}], "missing_required_parameter", id="B61 empty message"),
        pytest.param([None], "invalid_type", id="B61 null message"),
        pytest.param([{"role": "robot", "content": "x"}], "invalid_value", id="B61 unknown role"),
        pytest.param([{"role": ["user"], "content": "x"}], "invalid_value", id="role of a wrong type"),
    ],
)
def test_what_is_no_conversation_is_refused(messages: Any, code: RefusalCode) -> None:
    """Others answered an empty list with a 500 or a generated answer."""
    refusal = refused(messages=messages)
    assert (refusal.code, refusal.param) == (code, "messages")


def test_missing_messages_are_refused_like_a_missing_model() -> None:
    """B61 missing."""
    for name in ("messages", "model"):
        body = {"model": "m", "messages": [USER]}
        del body[name]
        refusal = MESSAGES.to_request(body, {})
        assert isinstance(refusal, Refusal)
        assert (refusal.code, refusal.param) == ("missing_required_parameter", name)


def test_only_a_system_message_is_a_conversation() -> None:
    """B61 system-only."""
    assert prompt_of(accepted(messages=[{"role": "system", "content": "Be brief."}])).messages == (
        {"role": "system", "content": "Be brief."},
    )


@pytest.mark.parametrize(
    ("content", "code", "param"),
    [
        pytest.param(None, "missing_required_parameter", "messages.0.content", id="B62 null"),
        pytest.param([], "invalid_value", "messages.0.content", id="B62 no block"),
        pytest.param(7, "invalid_type", "messages.0.content", id="number"),
        pytest.param([A, "B"], "invalid_type", "messages.0.content.1", id="bare string as block"),
        pytest.param([{"text": "A"}], "invalid_type", "messages.0.content.0", id="block without a type"),
        pytest.param([{"type": "text"}], "missing_required_parameter", "messages.0.content.0.text", id="no text"),
        pytest.param([A, IMAGE], "unsupported_parameter", "messages.0.content.1", id="B63 image"),
        pytest.param([{"type": "document"}], "unsupported_parameter", "messages.0.content.0", id="B63 document"),
        pytest.param([{"type": "hologram"}], "unsupported_parameter", "messages.0.content.0", id="B63 unknown"),
        pytest.param([THOUGHT], "unsupported_parameter", "messages.0.content.0", id="thinking of a user"),
        pytest.param(
            [RESULT | {"content": [IMAGE]}],
            "unsupported_parameter",
            "messages.0.content.0.content.0",
            id="B63 image in a result",
        ),
    ],
)
def test_content_that_is_no_text_is_refused_by_its_path(content: Any, code: RefusalCode, param: str) -> None:
    """Others dropped such blocks, printed them as Python lists, or answered 500."""
    refusal = refused(messages=[{"role": "user", "content": content}])
    assert (refusal.code, refusal.param) == (code, param)


def test_user_content_is_required() -> None:
    """B62 missing."""
    assert refused(messages=[{"role": "user"}]).param == "messages.0.content"


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        pytest.param([{"role": "user", "content": ""}], [{"role": "user", "content": ""}], id="B62 empty user"),
        pytest.param([assistant(A, B)], [{"role": "assistant", "content": "AB"}], id="B63 assistant"),
        pytest.param([{"role": "user", "content": [A, B]}], [{"role": "user", "content": "AB"}], id="B63 user"),
        pytest.param([{"role": "system", "content": [A, B]}], [{"role": "system", "content": "AB"}], id="B64 system"),
        pytest.param(
            [{"role": "assistant", "content": ""}], [{"role": "assistant", "content": ""}], id="B62 empty assistant"
        ),
        pytest.param(
            [USER, USER, assistant(A), assistant(B)],
            [USER, USER, {"role": "assistant", "content": "A"}, {"role": "assistant", "content": "B"}],
            id="turns of one role stay as they are",
        ),
        pytest.param(
            [assistant(CALL)], [{"role": "assistant", "content": None, "tool_calls": [CALLED]}], id="B65 call alone"
        ),
        pytest.param(
            [assistant(A, CALL)],
            [{"role": "assistant", "content": "A", "tool_calls": [CALLED]}],
            id="B65 call without a result",
        ),
        pytest.param(
            [{"role": "user", "content": [RESULT, A]}],
            [{"role": "tool", "tool_call_id": "toolu_1", "content": "sunny"}, {"role": "user", "content": "A"}],
            id="B65 result without a call",
        ),
        pytest.param(
            [{"role": "user", "content": [A, RESULT | {"content": [A, B]}, RESULT | {"content": None}]}],
            [
                {"role": "user", "content": "A"},
                {"role": "tool", "tool_call_id": "toolu_1", "content": "AB"},
                {"role": "tool", "tool_call_id": "toolu_1", "content": ""},
            ],
            id="B62 B63 results in their order, of blocks and empty",
        ),
        pytest.param(
            [assistant(THOUGHT, A, CALL)],
            [{"role": "assistant", "content": "A", "reasoning_content": "hm", "tool_calls": [CALLED]}],
            id="B69 thinking",
        ),
        pytest.param(
            [assistant({"type": "thinking", "thinking": "hm"}, {"type": "redacted_thinking", "data": "x"}, A)],
            [{"role": "assistant", "content": "A", "reasoning_content": "hm"}],
            id="B69 thinking without signature, redacted",
        ),
    ],
)
def test_history_is_normalised(sent: list[Any], expected: list[Any]) -> None:
    """Others dropped thinking, refused replayed calls, or rendered None as a word."""
    assert messages_of(*sent) == expected


@pytest.mark.parametrize(
    ("system", "expected"),
    [(None, []), ("", []), ("Be brief.", ["Be brief."]), ([A, B | {"cache_control": {"type": "ephemeral"}}], ["AB"])],
    ids=["null", "empty", "string", "B63 blocks"],
)
def test_the_system_prompt_stands_first(system: Any, expected: list[str]) -> None:
    assert messages_of(system=system) == [{"role": "system", "content": text} for text in expected]


def test_late_system_messages_keep_their_place() -> None:
    """B64: refused on one route and accepted on the others."""
    late = {"role": "system", "content": "Now in French."}
    assert messages_of(USER, late, system="Be brief.") == [{"role": "system", "content": "Be brief."}, USER, late]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"speed": "fast"}, "speed"),
        ({"inference_geo": "us"}, "inference_geo"),
        ({"n": 2}, "n"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits"),
        ({"thinking": {"type": "between_tools"}}, "thinking"),
        ({"messages": [USER, {"role": "assistant", "content": "The answer is ("}]}, "messages"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_would_change_the_answer_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    """B80: others dropped such fields silently."""
    refusal = refused(**fields)
    assert (refusal.code, refusal.param) == ("unsupported_parameter", param)
    assert param.split(".", maxsplit=1)[0] in refusal.message


@pytest.mark.parametrize(
    ("budget", "code"),
    [
        pytest.param(1023, "integer_below_min_value", id="B17 below the minimum"),
        pytest.param(2048, "invalid_value", id="B17 all of max_tokens"),
        pytest.param(4096, "invalid_value", id="B17 above max_tokens"),
        pytest.param("1024", "invalid_type", id="string"),
        pytest.param(None, "invalid_type", id="missing"),
    ],
)
def test_a_thinking_budget_is_checked(budget: Any, code: RefusalCode) -> None:
    refusal = refused(thinking={"type": "enabled", "budget_tokens": budget}, max_tokens=2048)
    assert (refusal.code, refusal.param) == (code, "thinking.budget_tokens")


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {"tool_choice": {"type": "none"}},
        {"thinking": {"type": "adaptive"}},
        {"metadata": {"user_id": "u"}},
        {"cache_control": {"type": "ephemeral"}},
        {"service_tier": "standard_only"},
        {"output_config": {"effort": None}},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        {"stop_sequences": None, "temperature": None, "system": None, "stream": None},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_changes_nothing_is_accepted(fields: dict[str, Any]) -> None:
    """Each stands in the default body of a real client."""
    request = accepted(**fields)
    assert request == accepted()


@pytest.mark.parametrize("budget", [1024, 2047], ids=lambda budget: f"B17 {budget} of 2048")
def test_a_thinking_budget_is_asked_for(budget: int) -> None:
    request = accepted(thinking={"type": "enabled", "budget_tokens": budget}, max_tokens=2048)
    assert request.reasoning_param == "thinking"
    assert request.wire["reasoning_budget_tokens"] == WireValue("thinking.budget_tokens", budget)
    assert prompt_of(request).template_arguments == {"enable_thinking": True}


def test_an_effort_is_advice_that_reaches_the_template() -> None:
    asked = accepted(output_config={"effort": "high"})
    assert (prompt_of(asked).template_arguments, asked.reasoning_param) == ({"reasoning_effort": "high"}, None)
    assert refused(output_config={"effort": "lots"}).param == "output_config.effort"


def test_thinking_can_be_turned_off() -> None:
    assert prompt_of(accepted(thinking={"type": "disabled"})).template_arguments == {"enable_thinking": False}
    own = {"enable_thinking": True, "style": "x"}
    prompt = prompt_of(accepted(thinking={"type": "disabled"}, chat_template_kwargs=own))
    assert prompt.template_arguments == own


@pytest.mark.parametrize(
    ("own", "param"),
    [
        ([], "chat_template_kwargs"),
        ({"messages": []}, "chat_template_kwargs.messages"),
        ({"enable_thinking": 1}, "chat_template_kwargs.enable_thinking"),
    ],
)
def test_template_arguments_of_the_server_stay_its_own(own: Any, param: str) -> None:
    assert refused(chat_template_kwargs=own).param == param


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k"])
def test_the_new_version_has_no_sampling(name: str) -> None:
    refusal = refused(NEW_VERSION, **{name: 1})
    assert (refusal.code, refusal.param) == ("unsupported_parameter", name)
    assert name in accepted({"anthropic-version": "2023-06-01"}, **{name: 1}).wire
    assert name in accepted({}, **{name: 1}).wire
    assert "seed" in accepted(NEW_VERSION, **{name: None, "seed": 1}).wire


def test_another_version_is_refused() -> None:
    refusal = refused({"anthropic-version": "2027-01-01"})
    assert (refusal.code, refusal.param) == ("invalid_value", "anthropic-version")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": ""}, "model"),
        ({"model": 7}, "model"),
        ({"stream": "true"}, "stream"),
        ({"metadata": []}, "metadata"),
        ({"system": 7}, "system"),
        ({"system": []}, "system"),
        ({"system": [IMAGE]}, "system.0"),
        ({"messages": [{"role": "assistant", "content": [CALL | {"input": "{}"}]}]}, "messages.0.content.0.input"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages.0.content.0.tool_use_id"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_shape_is_refused_by_its_path(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


WORDS = ["role", "user", "assistant", "content", "type", "text", "tool_use", "tool_result", "thinking", "id", "name"]


@given(bodies(KNOWN, [*WORDS, "input", "tool_use_id", "enabled", "budget_tokens", "edits", "keep", "format"]))
def test_no_body_raises(body: dict[str, Any]) -> None:
    """Whatever JSON was sent, a client gets a request or a sentence, never a 500 (B61 and its kin)."""
    for convert_body in (MESSAGES.to_request, to_count_request):
        outcome = convert_body(body, {})
        assert isinstance(outcome, GenerationRequest | Refusal)
        assert isinstance(outcome, GenerationRequest) or outcome.message.isprintable()


class TestCountTokens:
    def test_it_counts_the_prompt_that_messages_would_send(self) -> None:
        body = {"model": "m", "system": "Be brief.", "messages": [USER], "thinking": {"type": "disabled"}}
        counted, generated = to_count_request(body, {}), MESSAGES.to_request(body, {})
        assert isinstance(counted, GenerationRequest)
        assert isinstance(generated, GenerationRequest)
        assert counted.prompts == generated.prompts

    def test_a_conversation_may_end_with_the_assistant(self) -> None:
        ended = {"model": "m", "messages": [USER, {"role": "assistant", "content": "Hello!"}]}
        assert isinstance(to_count_request(ended, {}), GenerationRequest)

    def test_it_refuses_what_messages_refuses(self) -> None:
        for body in ({"messages": [USER]}, {"model": "m", "messages": []}, {"model": "m", "messages": [{}]}):
            assert to_count_request(body, {}) == MESSAGES.to_request(body, {})
            assert isinstance(to_count_request(body, {}), Refusal)
