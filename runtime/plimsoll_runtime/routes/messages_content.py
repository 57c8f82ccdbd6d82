"""The conversation of `/v1/messages`: from Anthropic's content blocks to the messages that chat templates read.

Owns the blocks. In: `system` and `messages` as they were sent. Out: normalised messages (request.ChatPrompt). It knows
no budget and no sampling. Rules: text blocks of one turn are joined as they are, with nothing in between; a
`tool_result` becomes a message of role `tool` in its place; `thinking` becomes `reasoning_content`;
`redacted_thinking` is dropped, because only its author can read it; turns of the same role stay as they are; any other
block is refused by its path. Source: Anthropic's Messages API reference, `ContentBlockParam`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

from plimsoll_runtime.refusal import RefusalCode
from plimsoll_runtime.routes.body import RefusedError, WireModel, read, refuse
from plimsoll_runtime.routes.content import join_text, text_of

ChatMessage = Mapping[str, Any]


Role = Literal["user", "assistant", "system"]
"""A `system` role between the turns is what Claude Code sends."""


class TextBlock(WireModel):
    text: str


class ThinkingBlock(WireModel):
    thinking: str


class ToolUseBlock(WireModel):
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(WireModel):
    tool_use_id: str
    content: Any = None


def read_conversation(system: Any, messages: list[Any]) -> tuple[ChatMessage, ...]:
    """All messages in order, `system` first where it says anything. Raises RefusedError with the path of the fault."""
    conversation: list[ChatMessage] = []
    if system is not None and system != "":
        conversation.append({"role": "system", "content": text_of(system, "system")})
    for index, message in enumerate(messages):
        path = f"messages.{index}"
        read_turn = _TURN_READERS[_role(message, path)]
        conversation.extend(read_turn(message.get("content"), f"{path}.content"))
    return tuple(conversation)


def _role(message: Any, path: str) -> Role:
    """Who speaks. A fault here names `messages` itself as the parameter, and the path in the sentence."""
    if not isinstance(message, dict):
        raise refuse("invalid_type", f"{path}: must be an object with role and content", "messages")
    role = message.get("role")
    for known in get_args(Role):
        if role == known:
            return known  # type: ignore[no-any-return]
    code: RefusalCode = "invalid_value" if "role" in message else "missing_required_parameter"
    raise refuse(code, f"{path}.role: must be one of {', '.join(get_args(Role))}", "messages")


def _read_system(content: Any, path: str) -> Iterator[ChatMessage]:
    yield {"role": "system", "content": text_of(content, path)}


def _read_user(content: Any, path: str) -> Iterator[ChatMessage]:
    texts: list[str] = []
    for kind, block, block_path in _blocks(content, path):
        match kind:
            case "text":
                texts.append(read(TextBlock, block, block_path).text)
            case "tool_result":
                if texts:
                    yield {"role": "user", "content": join_text(texts)}
                    texts = []
                yield _tool_message(read(ToolResultBlock, block, block_path), block_path)
            case _:
                raise unsupported_block(kind, block_path)
    if texts:
        yield {"role": "user", "content": join_text(texts)}


def _read_assistant(content: Any, path: str) -> Iterator[ChatMessage]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ChatMessage] = []
    for kind, block, block_path in _blocks(content, path):
        match kind:
            case "text":
                texts.append(read(TextBlock, block, block_path).text)
            case "thinking":
                thoughts.append(read(ThinkingBlock, block, block_path).thinking)
            case "redacted_thinking":
                continue
            case "tool_use":
                calls.append(_tool_call(read(ToolUseBlock, block, block_path)))
            case _:
                raise unsupported_block(kind, block_path)
    message: dict[str, Any] = {"role": "assistant", "content": join_text(texts) if texts or not calls else None}
    if thoughts:
        message["reasoning_content"] = join_text(thoughts)
    if calls:
        message["tool_calls"] = calls
    yield message


_TURN_READERS = {"system": _read_system, "user": _read_user, "assistant": _read_assistant}


def _tool_call(block: ToolUseBlock) -> ChatMessage:
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}


def _tool_message(block: ToolResultBlock, path: str) -> ChatMessage:
    """A result may be empty; `is_error` has no place in a chat template, its text says what went wrong."""
    empty = block.content is None or block.content == []
    content = "" if empty else text_of(block.content, f"{path}.content")
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}


def _blocks(content: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """(type, block, path) of each block; a plain string is one text block."""
    if isinstance(content, str):
        yield "text", {"text": content}, path
        return
    if content is None:
        raise refuse("missing_required_parameter", f"{path}: a string or a list of content blocks is needed", path)
    if not isinstance(content, list):
        raise refuse("invalid_type", f"{path}: must be a string or a list of content blocks", path)
    if not content:
        raise refuse("invalid_value", f"{path}: must have at least one content block", path)
    for index, block in enumerate(content):
        block_path = f"{path}.{index}"
        yield _kind(block, block_path), block, block_path


def _kind(block: Any, path: str) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str):
        raise refuse("invalid_type", f"{path}: must be an object with a type", path)
    return kind


def unsupported_block(kind: str, path: str) -> RefusedError:
    """The refusal of a block that the model could not see, or that has no place where it stands."""
    return refuse("unsupported_parameter", f"{path}: content blocks of type {kind[:40]!r} are not supported here", path)
