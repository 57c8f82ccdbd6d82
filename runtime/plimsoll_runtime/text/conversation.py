"""Messages as templates can take them: one shape for all, and what is tried when a template refuses.

Owns the rules, which are the same on every route:

- `developer` is `system`, unless the template knows the word.
- Absent or null content is the empty text; reasoning is passed under each name that templates read.
- Arguments of tool calls in the history are mappings that print as JSON, so a template that prints, joins or encodes
  them gets one level of encoding.
- System messages stand where the client put them. Where the template refuses that, or leaves their text out, they are
  joined in order into one system message at the beginning; where it refuses that too, neighbouring messages of one
  role are joined; and where it knows no system messages, their text begins the first user message.
- Ids of tool calls stay what they are. Where no arrangement renders with them (Mistral's templates want nine letters
  and digits), each is replaced by nine that are made of it, the same for a call and its result.

In: `ChatPrompt.messages`. Out: lists of plain messages, best first. It does not know templates or tokens.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_JOINT = "\n\n"
_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")

Message = dict[str, Any]


class Arguments(dict[str, Any]):
    """A mapping that reads as JSON wherever a template takes it for a text."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, text: object) -> str:
        return str(self) + text if isinstance(text, str) else NotImplemented

    def __radd__(self, text: object) -> str:
        return text + str(self) if isinstance(text, str) else NotImplemented


def plain_messages(messages: Sequence[Mapping[str, Any]], knows_developer: bool) -> list[Message]:
    """Every message in the shape that templates read, in the order given."""
    return [_plain_message(message, knows_developer) for message in messages]


def arrangements(messages: list[Message]) -> Iterator[list[Message]]:
    """The messages as they came, then as a stricter template may take them; without repetitions."""
    yield from _with_places_changed(messages)
    if any("tool_calls" in message or "tool_call_id" in message for message in messages):
        yield from _with_places_changed([_with_short_ids(message) for message in messages])


def _with_places_changed(messages: list[Message]) -> Iterator[list[Message]]:
    system, others = _joined_system(messages)
    tried: list[list[Message]] = []
    for arrangement in (
        messages,
        [*system, *others],
        [*system, *_joined_neighbours(others)],
        _joined_neighbours([{**message, "role": "user"} for message in system] + others),
    ):
        if arrangement not in tried:
            tried.append(arrangement)
            yield arrangement


def system_texts(messages: Sequence[Message]) -> list[str]:
    """What must stand in the rendered prompt, whatever the template does with it."""
    return [message["content"].strip() for message in messages if message["role"] in ("system", "developer")]


def _plain_message(message: Mapping[str, Any], knows_developer: bool) -> Message:
    plain = {key: value for key, value in message.items() if value is not None}
    plain.setdefault("content", "")
    if plain["role"] == "developer" and not knows_developer:
        plain["role"] = "system"
    reasoning = next((plain[name] for name in _REASONING_NAMES if name in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    if "tool_calls" in plain:
        plain["tool_calls"] = [_printable_call(call) for call in plain["tool_calls"]]
    return plain


def _printable_call(call: Mapping[str, Any]) -> Message:
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), Mapping):
        return dict(call)
    return {**call, "function": {**function, "arguments": Arguments(function["arguments"])}}


def _with_short_ids(message: Message) -> Message:
    changed = dict(message)
    if "tool_calls" in message:
        changed["tool_calls"] = [{**call, "id": _short_id(call.get("id"))} for call in message["tool_calls"]]
    if "tool_call_id" in message:
        changed["tool_call_id"] = _short_id(message["tool_call_id"])
    return changed


def _short_id(call_id: object) -> str:
    return hashlib.sha256(str(call_id).encode()).hexdigest()[:9]


def _joined_system(messages: list[Message]) -> tuple[list[Message], list[Message]]:
    """All system messages as one (none where there are none), and the others."""
    system = [message for message in messages if message["role"] in ("system", "developer")]
    others = [message for message in messages if message["role"] not in ("system", "developer")]
    if len(system) < 2:
        return system, others
    return [{"role": system[0]["role"], "content": _JOINT.join(message["content"] for message in system)}], others


def _joined_neighbours(messages: list[Message]) -> list[Message]:
    """Neighbouring plain messages of one role as one."""
    joined: list[Message] = []
    for message in messages:
        if joined and _are_plain(joined[-1], message):
            joined[-1] = {**joined[-1], "content": joined[-1]["content"] + _JOINT + message["content"]}
        else:
            joined.append(message)
    return joined


def _are_plain(first: Message, second: Message) -> bool:
    return first["role"] == second["role"] and first.keys() == second.keys() == {"role", "content"}
