"""`/v1/messages` and the body of `/v1/messages/count_tokens`: Anthropic's Messages API as pure converters.

Owns the wire names of this API. In: a parsed body and lower-case headers, or answer events. Out: a `GenerationRequest`,
or bodies and frames in Anthropic's shape. It knows no configuration, tokenizer or engine. Decisions that differ from
Anthropic's server: `max_tokens` may be absent (the configured default applies), and a conversation that ends with text
of the assistant (a prefill) is refused, since the answer would not continue it. Source: API reference, versions
2023-06-01 and 2026-10-21.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import Field

from plimsoll_runtime.contract.endpoints import HEADER_OVER_BUDGET, Route
from plimsoll_runtime.contract.endpoints import MESSAGES as MESSAGES_PATH
from plimsoll_runtime.refusal import Refusal
from plimsoll_runtime.request import ChatPrompt, GenerationRequest, ToolUse, WireValue
from plimsoll_runtime.routes.body import (
    WireModel,
    read,
    refuse,
    refuse_unsupported,
    refusing,
    unknown_fields,
    wire_values,
)
from plimsoll_runtime.routes.dialect import Answer, AnswerFacts, StreamWriter
from plimsoll_runtime.routes.messages_answer import MessagesStream, to_message
from plimsoll_runtime.routes.messages_content import ChatMessage, read_conversation
from plimsoll_runtime.routes.structures import EXTENSION, OLDER_EXTENSIONS, beside_tools, messages_structure
from plimsoll_runtime.routes.template_arguments import FIELD as TEMPLATE_ARGUMENTS
from plimsoll_runtime.routes.template_arguments import NO_EFFORT, asked_by, read_effort, template_arguments
from plimsoll_runtime.routes.tools import messages_tools, offered

WITHOUT_SAMPLING: Final = "2026-10-21"
"""The version of the API that took the sampling parameters away."""
VERSIONS: Final = ("2023-06-01", WITHOUT_SAMPLING)
SAMPLING_OF_OLD: Final = ("temperature", "top_p", "top_k")

MIN_THINKING_TOKENS: Final = 1024

WIRE_NAMES: Final[Mapping[str, str]] = {
    "max_tokens": "requested_output_tokens",
    "stop_sequences": "stop",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    # Extensions, named as on the other routes.
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
    "logit_bias": "logit_bias",
    "seed": "seed",
    "stop_token_ids": "stop_token_ids",
    "min_tokens": "min_tokens",
    "ignore_eos": "ignore_eos",
    "repetition_stop": "repetition_stop",
}

ONLY_DEFAULTS: Final[Mapping[str, tuple[Any, ...]]] = {
    "mcp_servers": ([],),
    "container": (),
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
    "inference_geo": (),
    "n": (1,),
}
"""Fields that would change the answer, or promise something about it, with the values that change nothing."""

WITHOUT_EFFECT: Final = frozenset({"metadata", "cache_control", "diagnostics", "user_profile_id", "workspace_id"})
"""Fields about accounting or caching: accepted, the answer is the same with and without them."""


class Body(WireModel):
    """What both endpoints share; numbers of the budget and of sampling are read raw from the body."""

    model: Annotated[str, Field(min_length=1)]
    messages: Annotated[list[Any], Field(min_length=1)]
    system: Any = None
    stream: bool | None = None
    thinking: dict[str, Any] | None = None
    tool_choice: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


KNOWN: Final = (
    frozenset({TEMPLATE_ARGUMENTS, "tools", *Body.model_fields})
    | WIRE_NAMES.keys()
    | ONLY_DEFAULTS.keys()
    | WITHOUT_EFFECT
    | {"output_format", EXTENSION, *OLDER_EXTENSIONS}
)


class Messages:
    """The dialect of `/v1/messages`. Stateless."""

    route: Route = MESSAGES_PATH

    def to_request(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> GenerationRequest | Refusal:
        return _to_request(body, headers)

    def to_response(self, answer: Answer, facts: AnswerFacts) -> dict[str, Any]:
        return to_message(answer, facts)

    def stream_writer(self, facts: AnswerFacts) -> StreamWriter:
        return MessagesStream(facts)


MESSAGES = Messages()


@refusing
def _to_request(body: Mapping[str, Any], headers: Mapping[str, str]) -> GenerationRequest:
    version = _version(headers)
    parsed = _read_body(body)
    if version == WITHOUT_SAMPLING:
        _refuse_sampling(body)
    tool_use = messages_tools(body, parsed.tool_choice)
    prompt = _prompt(body, parsed, tool_use)
    _refuse_prefill(prompt.messages)
    return GenerationRequest(
        route=MESSAGES_PATH,
        model=parsed.model,
        prompt_param="messages",
        prompts=(prompt,),
        tool_use=tool_use,
        reasoning_param="thinking" if _kind_of_thinking(parsed) == "enabled" else None,
        wire=wire_values(body, WIRE_NAMES) | _reasoning_budget(parsed),
        structure=beside_tools(messages_structure(parsed.output_config, body), tool_use),
        over_budget=headers.get(HEADER_OVER_BUDGET),
        stream=parsed.stream is True,
        unknown_fields=unknown_fields(body, KNOWN),
    )


@refusing
def to_count_request(body: Mapping[str, Any], headers: Mapping[str, str]) -> GenerationRequest:
    """A body of `/v1/messages/count_tokens`: the same prompt by the same path, without a budget.

    Gives a Refusal where `/v1/messages` would refuse the prompt; a conversation may end with the assistant here.
    """
    _version(headers)
    parsed = _read_body(body)
    tool_use = messages_tools(body, parsed.tool_choice)
    return GenerationRequest(
        route=MESSAGES_PATH,
        model=parsed.model,
        prompt_param="messages",
        prompts=(_prompt(body, parsed, tool_use),),
        tool_use=tool_use,
        unknown_fields=unknown_fields(body, KNOWN),
    )


def _version(headers: Mapping[str, str]) -> str:
    version = headers.get("anthropic-version", VERSIONS[0])
    if version not in VERSIONS:
        known = " or ".join(VERSIONS)
        raise refuse(
            "invalid_value", f"anthropic-version: {version[:40]!r} is not known: send {known}", "anthropic-version"
        )
    return version


def _read_body(body: Mapping[str, Any]) -> Body:
    parsed = read(Body, body)
    refuse_unsupported(body, ONLY_DEFAULTS)
    _check_thinking(parsed.thinking, body.get("max_tokens"))
    _refuse_context_edits(parsed.context_management)
    return parsed


def _refuse_sampling(body: Mapping[str, Any]) -> None:
    for name in SAMPLING_OF_OLD:
        if body.get(name) is not None:
            message = f"{name}: not accepted with anthropic-version {WITHOUT_SAMPLING}: leave it out"
            raise refuse("unsupported_parameter", message, name)


def _check_thinking(thinking: Mapping[str, Any] | None, max_tokens: Any) -> None:
    """`adaptive` leaves the choice to the model, and `disabled` turns it off."""
    if thinking is None or thinking.get("type") in ("disabled", "adaptive"):
        return
    if thinking.get("type") != "enabled":
        kind = str(thinking.get("type"))[:40]
        message = f"thinking: type {kind!r} is not supported: send enabled, disabled or adaptive"
        raise refuse("unsupported_parameter", message, "thinking")
    _check_thinking_budget(thinking.get("budget_tokens"), max_tokens)


def _check_thinking_budget(budget: Any, max_tokens: Any) -> None:
    param = "thinking.budget_tokens"
    if type(budget) is not int:
        raise refuse("invalid_type", f"{param}: must be an integer", param)
    if budget < MIN_THINKING_TOKENS:
        message = f"{param}: {budget:,} is below the minimum of {MIN_THINKING_TOKENS:,}"
        raise refuse("integer_below_min_value", message, param)
    if type(max_tokens) is int and budget >= max_tokens:
        message = f"{param}: {budget:,} must be less than max_tokens {max_tokens:,}"
        raise refuse("invalid_value", message, param)


def _refuse_context_edits(context_management: Mapping[str, Any] | None) -> None:
    """Keeping all thinking is what happens here anyway; any other edit would change the prompt."""
    edits = [] if context_management is None else context_management.get("edits")
    for edit in edits if isinstance(edits, list) else [edits]:
        if not (isinstance(edit, dict) and edit.get("keep") == "all" and _is_about_thinking(edit.get("type"))):
            param = "context_management.edits"
            raise refuse("unsupported_parameter", f"{param}: not supported by this server: leave it out", param)


def _is_about_thinking(kind: Any) -> bool:
    return isinstance(kind, str) and kind.startswith("clear_thinking")


def _refuse_prefill(messages: tuple[ChatMessage, ...]) -> None:
    last = messages[-1]
    if last["role"] == "assistant" and last["content"] and "tool_calls" not in last:
        message = "messages: text of the assistant at the end (a prefill) is not supported: end with a user turn"
        raise refuse("unsupported_parameter", message, "messages")


def _prompt(body: Mapping[str, Any], parsed: Body, tool_use: ToolUse | None) -> ChatPrompt:
    conversation = read_conversation(parsed.system, parsed.messages)
    return ChatPrompt(conversation, template_arguments(body, _asked_thinking(parsed)), offered(tool_use))


def _asked_thinking(parsed: Body) -> dict[str, Any]:
    """An effort alone is advice on the whole answer here, and leaves it to the template whether to think."""
    effort = read_effort((parsed.output_config or {}).get("effort"), "output_config.effort")
    advice = {} if effort in (None, NO_EFFORT) else {"reasoning_effort": effort}
    match _kind_of_thinking(parsed):
        case "disabled":
            return asked_by(NO_EFFORT)
        case "enabled":
            return {"enable_thinking": True, **advice}
    return advice


def _kind_of_thinking(parsed: Body) -> Any:
    return None if parsed.thinking is None else parsed.thinking.get("type")


def _reasoning_budget(parsed: Body) -> dict[str, WireValue]:
    if _kind_of_thinking(parsed) != "enabled":
        return {}
    assert parsed.thinking is not None
    return {"reasoning_budget_tokens": WireValue("thinking.budget_tokens", parsed.thinking["budget_tokens"])}
