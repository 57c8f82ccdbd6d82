"""Tools as the three dialects that have them write and read them, driven by the official SDKs."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from anthropic import Anthropic
from openai import LengthFinishReasonError, OpenAI

from doubles.server import MODEL
from plimsoll_runtime.contract import endpoints


@dataclass(frozen=True)
class Heard:
    """What a client makes of an answer. `calls`: id, name and arguments as text (on messages: as a value, as JSON)."""

    content: str
    calls: list[tuple[str, str, str]]
    reason: Any

    @property
    def named(self) -> list[list[str]]:
        return [[name, arguments] for _, name, arguments in self.calls]


def chat_tool(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": True}}


def responses_tool(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": parameters, "strict": True}


def messages_tool(name: str, parameters: Any) -> dict[str, Any]:
    return {"name": name, "input_schema": parameters}


def _chat(url: str, prompt: str, stream: bool, fields: Mapping[str, Any]) -> Heard:
    asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": prompt}], **fields}
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        if stream:
            with client.chat.completions.stream(**asked) as events:
                choice: Any = _final(events).choices[0]
        else:
            choice = client.chat.completions.create(**asked).choices[0]
    calls = [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
    return Heard(choice.message.content or "", calls, choice.finish_reason)


def _final(events: Any) -> Any:
    """What the SDK put together; it raises where a limit cut it, since it would parse the arguments."""
    try:
        return events.get_final_completion()
    except LengthFinishReasonError as cut:
        return cut.completion


def _responses(url: str, prompt: str, stream: bool, fields: Mapping[str, Any]) -> Heard:
    asked: Any = {"model": MODEL, "input": prompt, **fields}
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        if stream:
            with client.responses.stream(**asked) as events:
                for event in events:
                    last: Any = event
                response: Any = last.response
        else:
            response = client.responses.create(**asked)
    calls = [(item.call_id, item.name, item.arguments) for item in response.output if item.type == "function_call"]
    return Heard(response.output_text, calls, response.status)


def _messages(url: str, prompt: str, stream: bool, fields: Mapping[str, Any]) -> Heard:
    asked: Any = {"model": MODEL, "max_tokens": 1024, "messages": [{"role": "user", "content": prompt}], **fields}
    with Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        if stream:
            with client.messages.stream(**asked) as events:
                message: Any = events.get_final_message()
        else:
            message = client.messages.create(**asked)
    calls = [(block.id, block.name, json.dumps(block.input)) for block in message.content if block.type == "tool_use"]
    text = "".join(block.text for block in message.content if block.type == "text")
    return Heard(text, calls, message.stop_reason)


@dataclass(frozen=True)
class Dialect:
    """How one route is asked, and its words for an answer that calls tools, that ends, and that a limit cuts."""

    ask: Callable[[str, str, bool, Mapping[str, Any]], Heard]
    tool: Callable[[str, Any], dict[str, Any]]
    limit: str
    called: str
    ended: str
    cut: str
    none: Any
    one_call: Mapping[str, Any]
    forced: Any
    named: Callable[[str], Any]

    def tools(self, tools: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [self.tool(name, schema or {"type": "object"}) for name, schema in tools.items()]


_ONE: Mapping[str, Any] = {"parallel_tool_calls": False}
TOOL_DIALECTS: Mapping[str, Dialect] = {
    endpoints.CHAT_COMPLETIONS: Dialect(
        _chat,
        chat_tool,
        "max_completion_tokens",
        "tool_calls",
        "stop",
        "length",
        "none",
        _ONE,
        "required",
        lambda name: {"type": "function", "function": {"name": name}},
    ),
    endpoints.RESPONSES: Dialect(
        _responses,
        responses_tool,
        "max_output_tokens",
        "completed",
        "completed",
        "incomplete",
        "none",
        _ONE,
        "required",
        lambda name: {"type": "function", "name": name},
    ),
    endpoints.MESSAGES: Dialect(
        _messages,
        messages_tool,
        "max_tokens",
        "tool_use",
        "end_turn",
        "max_tokens",
        {"type": "none"},
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {"type": "any"},
        lambda name: {"type": "tool", "name": name},
    ),
}
