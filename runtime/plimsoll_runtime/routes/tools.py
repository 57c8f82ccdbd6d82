"""The tools that a request offers, and which of them the model is to call, as the three dialects write them.

Owns the checks of a tool: its name, and that its parameters are an object. In: the JSON values of `tools`,
`tool_choice` and `parallel_tool_calls`. Out: a `ToolUse`, or None where the model may call nothing; RefusedError with
the path of the fault. It knows no template and no parser. A tool without parameters takes an empty object; `strict` is
accepted and asks for nothing that is checked here. Sources: the API references of the three routes.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from plimsoll_runtime.request import Tool, ToolUse
from plimsoll_runtime.routes.body import RefusedError, WireModel, read, read_switch, refuse

FIELDS: Final = frozenset({"tools", "tool_choice", "parallel_tool_calls"})
"""The names on the OpenAI routes."""
SERVED_BY_OPENAI: Final = ("web_search", "web_search_preview", "namespace")
"""Kinds of tools that agents offer by default on responses, and that only OpenAI's own servers run: left out."""

_NO_PARAMETERS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}
_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]+", re.ASCII)
_LONGEST_NAME: Final = 64
_LONGEST_NAME_OF_MESSAGES: Final = 128


class _Function(WireModel):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _MessagesTool(WireModel):
    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None


def offered(tool_use: ToolUse | None) -> tuple[Tool, ...]:
    """What the model is to see: where it may call nothing, nothing."""
    return () if tool_use is None else tool_use.tools


def chat_tools(body: Mapping[str, Any]) -> ToolUse | None:
    """The tools of chat completions, each with its `function` inside."""
    tools: list[Tool] = []
    for tool, path in _items(body.get("tools")):
        if tool.get("type") != "function":
            raise _unsupported_kind(tool.get("type"), path)
        if "function" not in tool:
            raise refuse("missing_required_parameter", f"{path}.function is required", f"{path}.function")
        tools.append(_function(tool["function"], f"{path}.function"))
    return _openai_use(body, tools, ("function", "name"))


def responses_tools(body: Mapping[str, Any]) -> tuple[ToolUse | None, tuple[str, ...]]:
    """The tools of responses, and the kinds that were left out, as paths to be counted."""
    tools: list[Tool] = []
    left_out: list[str] = []
    for tool, path in _items(body.get("tools")):
        kind = tool.get("type")
        if kind in SERVED_BY_OPENAI:
            left_out.append(f"tools.{kind}")
        elif kind == "function":
            tools.append(_function(tool, path))
        else:
            raise _unsupported_kind(kind, path)
    return _openai_use(body, tools, ("name",)), tuple(left_out)


def messages_tools(body: Mapping[str, Any], tool_choice: Mapping[str, Any] | None) -> ToolUse | None:
    """The tools of messages; `parallel` is said inside of `tool_choice` there."""
    tools: list[Tool] = []
    for tool, path in _items(body.get("tools")):
        if tool.get("type", "custom") not in ("custom", None):
            raise _unsupported_kind(tool.get("type"), path)
        made = read(_MessagesTool, tool, path)
        _check_name(made.name, path, _LONGEST_NAME_OF_MESSAGES)
        tools.append(Tool(made.name, made.description, made.input_schema or _NO_PARAMETERS))
    _check_each_once(tools)
    choice = {} if tool_choice is None else tool_choice
    takes_one = read_switch(choice, "disable_parallel_tool_use", path="tool_choice")
    match choice.get("type", "auto"):
        case "none":
            return None
        case "auto":
            return _use(tools, parallel=not takes_one)
        case "any":
            raise _forced(tools, None)
        case "tool":
            raise _forced(tools, choice.get("name"), is_named=True)
    raise refuse("invalid_value", "tool_choice.type must be auto, any, tool or none", "tool_choice")


def _openai_use(body: Mapping[str, Any], tools: Sequence[Tool], path_of_name: Iterable[str]) -> ToolUse | None:
    _check_each_once(tools)
    parallel = read_switch(body, "parallel_tool_calls", default=True)
    match body.get("tool_choice"):
        case "none":
            return None
        case "auto" | None:
            return _use(tools, parallel=parallel)
        case "required":
            raise _forced(tools, None)
        case {"type": "function", **choice}:
            name: Any = choice
            for part in path_of_name:
                name = name.get(part) if isinstance(name, Mapping) else None
            raise _forced(tools, name, is_named=True)
    message = "tool_choice must be none or auto; required and named choices need structured output"
    raise refuse("unsupported_parameter", message, "tool_choice")


def _use(tools: Sequence[Tool], *, parallel: bool) -> ToolUse | None:
    return ToolUse(tuple(tools), parallel) if tools else None


def _forced(tools: Sequence[Tool], name: Any, *, is_named: bool = False) -> RefusedError:
    """The refusal of a choice that forces a call."""
    if not tools:
        return refuse("invalid_value", "tool_choice asks for a call, but there are no tools: give some", "tool_choice")
    if is_named and name not in [tool.name for tool in tools]:
        message = f"tool_choice names {str(name)[:80]!r}, which is not among tools"
        return refuse("invalid_value", message, "tool_choice")
    message = "tool_choice: a forced call needs structured output, which this server does not have: send auto or none"
    return refuse("unsupported_parameter", message, "tool_choice")


def _items(value: Any) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Every tool with its path."""
    if value is not None and not isinstance(value, list):
        raise refuse("invalid_type", "tools must be a list", "tools")
    for index, item in enumerate(value or []):
        path = f"tools.{index}"
        if not isinstance(item, dict):
            raise refuse("invalid_type", f"{path} must be an object", path)
        yield item, path


def _function(value: Any, path: str) -> Tool:
    function = read(_Function, value, path)
    _check_name(function.name, path, _LONGEST_NAME)
    return Tool(function.name, function.description, function.parameters or _NO_PARAMETERS)


def _check_name(name: str, path: str, longest: int) -> None:
    if len(name) > longest or not _NAME.fullmatch(name):
        where = f"{path}.name"
        message = f"{where} must be 1 to {longest} letters, digits, underscores, dots and hyphens, not {name[:80]!r}"
        raise refuse("invalid_value", message, where)


def _check_each_once(tools: Sequence[Tool]) -> None:
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            raise refuse("invalid_value", f"tools: {tool.name!r} is there twice: name each tool once", "tools")
        seen.add(tool.name)


def _unsupported_kind(kind: Any, path: str) -> RefusedError:
    where = f"{path}.type"
    message = f"{where}: tools of type {str(kind)[:40]!r} are not supported by this server: give functions"
    return refuse("unsupported_parameter", message, where)
