"""Tools and reasoning as the three dialects that have them write and read them, driven by the official SDKs."""

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
    """What a client makes of an answer. `calls`: id, name and arguments as text (on messages: as a value, as JSON);
    `tokens`: of the output, and of the reasoning in it, where the SDK says."""

    content: str
    calls: list[tuple[str, str, str]]
    reason: Any
    reasoning: str | None
    tokens: tuple[int, int] | None

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
            with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as events:
                completion: Any = _final(events)
        else:
            completion = client.chat.completions.create(**asked)
    choice, usage = completion.choices[0], completion.usage
    calls = [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
    reasoning = getattr(choice.message, "reasoning_content", None)
    tokens = usage and (usage.completion_tokens, usage.completion_tokens_details.reasoning_tokens)
    return Heard(choice.message.content or "", calls, choice.finish_reason, reasoning, tokens)


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
    thoughts = [part.text for item in response.output if item.type == "reasoning" for part in item.content]
    tokens = (response.usage.output_tokens, response.usage.output_tokens_details.reasoning_tokens)
    return Heard(response.output_text, calls, response.status, _joined(thoughts), tokens)


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
    thoughts = [block.thinking for block in message.content if block.type == "thinking"]
    assert all(block.signature for block in message.content if block.type == "thinking")
    tokens = (message.usage.output_tokens, message.usage.output_tokens_details.thinking_tokens)
    return Heard(text, calls, message.stop_reason, _joined(thoughts), tokens)


def _joined(thoughts: list[str]) -> str | None:
    return "".join(thoughts) if thoughts else None


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
