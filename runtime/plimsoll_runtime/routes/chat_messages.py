"""The `messages` of a chat request, checked and brought into the shape that chat templates read.

In: the JSON value of `messages`. Out: one mapping per message, in order, `developer` renamed to `system`; RefusedError
naming the path otherwise. It does not know templates, so it refuses no order of roles, no system-only conversation and
no tool result without its call: a template that cannot render them says so itself. Source: the messages of OpenAI's
chat completions reference, with `reasoning_content` as other servers of open models send and accept it.
"""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from pydantic import Field

from plimsoll_runtime.routes.body import WireModel, read, refuse
from plimsoll_runtime.routes.content import call_arguments, text_of

Role = Literal["system", "developer", "user", "assistant", "tool"]


class _Function(WireModel):
    name: str = Field(min_length=1)
    arguments: Any = ""


class _ToolCall(WireModel):
    id: str
    type: Literal["function"] = "function"
    function: _Function


class _Message(WireModel):
    content: Any = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None
    refusal: Any = None
    audio: Any = None
    function_call: Any = None


def read_messages(value: Any) -> tuple[Mapping[str, Any], ...]:
    """`value` is what stands under `messages`, None where nothing does."""
    if value is None:
        raise refuse("missing_required_parameter", "messages is required: give a list of messages", "messages")
    if not isinstance(value, list):
        raise refuse("invalid_type", "messages must be a list of messages", "messages")
    if not value:
        raise refuse("invalid_value", "messages is empty: give at least one message", "messages")
    return tuple(_read_message(item, f"messages.{index}") for index, item in enumerate(value))


def _read_message(item: Any, path: str) -> Mapping[str, Any]:
    role = _role_of(item, path)
    message = read(_Message, item, path)
    _refuse_what_is_not_text(message, path)
    normal: dict[str, Any] = {"role": "system" if role == "developer" else role}
    if role == "assistant":
        normal |= _assistant_fields(message, path)
    else:
        normal["content"] = text_of(message.content, f"{path}.content")
    if role == "tool":
        normal["tool_call_id"] = _tool_call_id(message, path)
    if message.name is not None:
        normal["name"] = message.name
    return normal


def _role_of(item: Any, path: str) -> Role:
    """Who speaks. A fault here names `messages` itself as the parameter, and the path in the sentence."""
    if not isinstance(item, dict):
        raise refuse("invalid_type", f"{path} must be an object with role and content", "messages")
    role = item.get("role")
    for known in get_args(Role):
        if role == known:
            return known  # type: ignore[no-any-return]
    code: Literal["invalid_value", "missing_required_parameter"] = (
        "invalid_value" if "role" in item else "missing_required_parameter"
    )
    raise refuse(code, f"{path}.role must be one of {', '.join(get_args(Role))}", "messages")


def _refuse_what_is_not_text(message: _Message, path: str) -> None:
    for name in ("refusal", "audio", "function_call"):
        if getattr(message, name) is not None:
            where = f"{path}.{name}"
            raise refuse("unsupported_parameter", f"{where} is not supported by this server: leave it out", where)


def _assistant_fields(message: _Message, path: str) -> dict[str, Any]:
    """Content is required unless the turn called tools; a turn cut while it thought has reasoning alone."""
    fields: dict[str, Any] = {}
    calls = [_read_call(call, f"{path}.tool_calls.{i}") for i, call in enumerate(message.tool_calls or [])]
    if message.content is None and calls:
        fields["content"] = None
    elif message.content is None and message.reasoning_content is not None:
        fields["content"] = ""
    else:
        fields["content"] = text_of(message.content, f"{path}.content")
    if message.reasoning_content is not None:
        fields["reasoning_content"] = message.reasoning_content
    if calls:
        fields["tool_calls"] = calls
    return fields


def _read_call(item: Any, path: str) -> dict[str, Any]:
    call = read(_ToolCall, item, path)
    arguments = call.function.arguments
    where = f"{path}.function.arguments"
    if isinstance(arguments, str):
        arguments = call_arguments(arguments, where)
    elif not isinstance(arguments, dict):
        raise refuse("invalid_type", f"{where} must be a string with JSON", where)
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def _tool_call_id(message: _Message, path: str) -> str:
    if message.tool_call_id is None:
        where = f"{path}.tool_call_id"
        raise refuse("missing_required_parameter", f"{where} is required: the id of the call this answers", where)
    return message.tool_call_id
