"""The `input` of `/v1/responses`: from items to the messages that chat templates read.

Owns the items. In: a string or a list of items, as sent. Out: normalised messages (request.ChatPrompt). It knows no
store and no budget. Rules: text parts are joined as they are, with nothing in between; `developer` becomes `system`;
`reasoning` goes to the assistant's message or call that follows it; a `function_call` joins the assistant's message
before it, as one turn of the assistant is spread over items; anything else is refused by its path, never dropped.
A reasoning item that has only `encrypted_content` is dropped, because only its author can read it. Source: OpenAI's API
reference, "Responses", `ResponseInputItem`.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

from plimsoll_runtime.routes.body import WireModel, read, refuse
from plimsoll_runtime.routes.content import call_arguments, text_of

ChatMessage = dict[str, Any]
Role = Literal["user", "assistant", "system", "developer"]

PARTS: Final[Mapping[str, str]] = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
"""Parts that are words, whoever said them."""
THOUGHTS: Final[Mapping[str, str]] = {"reasoning_text": "text", "summary_text": "text"}


class FunctionCall(WireModel):
    call_id: str
    name: str
    arguments: str


class FunctionCallOutput(WireModel):
    call_id: str


class Reasoning(WireModel):
    content: list[Any] | None = None
    summary: list[Any] | None = None


def read_input(value: Any) -> tuple[ChatMessage, ...]:
    """The messages that `input` stands for. Raises RefusedError with the path of the first fault."""
    if isinstance(value, str):
        return ({"role": "user", "content": value},)
    if value is None:
        raise refuse("missing_required_parameter", "input is required: give a string or a list of items", "input")
    if not isinstance(value, list):
        raise refuse("invalid_type", "input must be a string or a list of items", "input")
    if not value:
        raise refuse("invalid_value", "input is empty: give at least one item", "input")
    conversation = _Conversation()
    for index, item in enumerate(value):
        conversation.add(item, f"input.{index}")
    return conversation.finish()


class _Conversation:
    """Messages so far, and the reasoning that still waits for its message."""

    def __init__(self) -> None:
        self._messages: list[ChatMessage] = []
        self._reasoning = ""

    def add(self, item: Any, path: str) -> None:
        if not isinstance(item, dict):
            raise refuse("invalid_type", f"{path} must be an object with role and content, or with a type", "input")
        match item.get("type"):
            case "message" | None:
                self._add_message(item, path)
            case "reasoning":
                self._reasoning += _reasoning_text(read(Reasoning, item, path), path)
            case "function_call":
                self._add_call(read(FunctionCall, item, path), path)
            case "function_call_output":
                self._add_output(item, path)
            case kind:
                message = f"{path}: items of type {str(kind)[:40]!r} are not supported by this server: leave them out"
                raise refuse("unsupported_parameter", message, path)

    def finish(self) -> tuple[ChatMessage, ...]:
        self._end_reasoning()
        return tuple(self._messages)

    def _add_message(self, item: Mapping[str, Any], path: str) -> None:
        role = _role(item, path)
        content = text_of(item.get("content"), f"{path}.content", PARTS)
        self._append({"role": "system" if role == "developer" else role, "content": content})

    def _append(self, message: ChatMessage) -> None:
        if message["role"] != "assistant":
            self._end_reasoning()
        elif self._reasoning:
            message["reasoning_content"] = self._reasoning
            self._reasoning = ""
        self._messages.append(message)

    def _end_reasoning(self) -> None:
        """Reasoning that no word of the assistant followed is a turn of its own."""
        if self._reasoning:
            self._append({"role": "assistant", "content": ""})

    def _add_call(self, call: FunctionCall, path: str) -> None:
        arguments = call_arguments(call.arguments, f"{path}.arguments")
        function = {"name": call.name, "arguments": arguments}
        if self._reasoning or not self._messages or self._messages[-1]["role"] != "assistant":
            self._append({"role": "assistant", "content": None})
        calls = self._messages[-1].setdefault("tool_calls", [])
        calls.append({"id": call.call_id, "type": "function", "function": function})

    def _add_output(self, item: Mapping[str, Any], path: str) -> None:
        output = read(FunctionCallOutput, item, path)
        content = text_of(item.get("output"), f"{path}.output", PARTS)
        self._append({"role": "tool", "tool_call_id": output.call_id, "content": content})


def _role(item: Mapping[str, Any], path: str) -> str:
    """Who speaks. A fault here names `input` itself as the parameter, and the path in the sentence."""
    role = item.get("role")
    known = get_args(Role)
    if role in known:
        return str(role)
    message = f"{path}.role must be one of {', '.join(known)}"
    raise refuse("invalid_value" if "role" in item else "missing_required_parameter", message, "input")


def _reasoning_text(reasoning: Reasoning, path: str) -> str:
    """What the model thought; where only a summary came back, the summary."""
    name, parts = ("content", reasoning.content) if reasoning.content else ("summary", reasoning.summary)
    return text_of(parts, f"{path}.{name}", THOUGHTS) if parts else ""
