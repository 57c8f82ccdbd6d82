"""The answer of `/v1/messages`: the message object, and the events that build the same object piece by piece.

Owns Anthropic's response shapes. In: a folded `Answer`, or its events. Out: a body, or frames that each carry `event`
and `data`. It knows no request fields. Invariants: an empty text has no block; a block is started before its first
delta and stopped before `message_delta`; what `message_delta` says replaces what `message_start` said.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, assert_never

from plimsoll_runtime.contract.endpoints import MESSAGES
from plimsoll_runtime.events import (
    AnswerEvent,
    Begun,
    Broken,
    CallArguments,
    CallBegun,
    CallEnded,
    ChoiceEnded,
    Echo,
    Ended,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from plimsoll_runtime.refusal import Refusal
from plimsoll_runtime.routes.dialect import (
    Answer,
    AnswerFacts,
    Call,
    ChoiceAnswer,
    Frame,
    Reasoning,
    finish_detail_body,
    json_frame,
)
from plimsoll_runtime.routes.errors import error_body
from plimsoll_runtime.routes.json_body import RawJson


def to_message(answer: Answer, facts: AnswerFacts) -> dict[str, Any]:
    """The body of a plain answer."""
    choice = answer.choices[0]
    content = [_block(part, facts) for part in choice.parts()]
    message = _message(facts, content, _usage(answer.usage)) | _ending(choice)
    return message | _finish_detail(choice)


def _message(facts: AnswerFacts, content: list[dict[str, Any]], usage: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": f"msg_{facts.request_id}",
        "type": "message",
        "role": "assistant",
        "model": facts.model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "usage": usage,
    }


def _block(part: str | Call | Reasoning, facts: AnswerFacts) -> dict[str, Any]:
    match part:
        case str():
            return _text_block(part)
        case Call():
            return _call_block(part)
        case Reasoning():
            return _thinking_block(part.text, _signature(facts))


def _thinking_block(text: str, signature: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": signature}


def _signature(facts: AnswerFacts) -> str:
    """Clients send it back with the block. Nothing is checked by it here, so it only says where the block is from."""
    return f"plimsoll-{facts.request_id}"


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "citations": None}


def _call_block(call: Call) -> dict[str, Any]:
    """The arguments stand in the body as the model wrote them: a number that no float holds stays what it is."""
    return {**_tool_use(call.call_id, call.name), "input": RawJson(call.arguments)}


def _tool_use(call_id: str, name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{call_id}", "name": name, "input": {}}


def _ending(choice: ChoiceAnswer | ChoiceEnded) -> dict[str, Any]:
    return {
        "stop_reason": _stop_reason(choice),
        "stop_sequence": choice.matched_stop,
        "stop_details": None,
        "container": None,
    }


def _stop_reason(choice: ChoiceAnswer | ChoiceEnded) -> str:
    if choice.reason == "length":
        by_context = choice.detail is not None and choice.detail.type == "context"
        return "model_context_window_exceeded" if by_context else "max_tokens"
    if choice.reason == "tool_calls":
        return "tool_use"
    return "end_turn" if choice.matched_stop is None else "stop_sequence"


def _finish_detail(choice: ChoiceAnswer | ChoiceEnded) -> dict[str, Any]:
    return {} if choice.detail is None else {"finish_detail": finish_detail_body(choice.detail)}


def _usage(usage: Usage) -> dict[str, Any]:
    """`input_tokens` leaves out what the cache served. Filling the cache costs nothing here, so it is reported as 0."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "server_tool_use": None,
        "service_tier": "standard",
        "inference_geo": None,
    }


CUMULATIVE_USAGE: Final = (
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
    "output_tokens_details",
    "server_tool_use",
)
"""The part of usage that `message_delta` repeats with the final counts."""


class MessagesStream:
    """The writer of one stream. It holds which kind of block is open, its number, and how the choice ended."""

    def __init__(self, facts: AnswerFacts) -> None:
        self._facts = facts
        self._open: str | None = None
        self._index = -1
        self._ended: ChoiceEnded | None = None

    def to_chunks(self, event: AnswerEvent) -> Iterable[Frame]:
        """Frames for one event; `Ended` gives `message_delta` and `message_stop`, `Broken` gives `error`."""
        match event:
            case Begun():
                return [self._start(event.prompt_tokens), PING]
            case TextDelta():
                return self._text(event.text)
            case ReasoningDelta():
                frames = [] if self._open == "thinking" else self._begin("thinking", _thinking_block("", ""))
                return [*frames, self._delta({"type": "thinking_delta", "thinking": event.text})]
            case CallBegun():
                return self._begin("tool_use", _tool_use(event.call_id, event.name))
            case CallArguments():
                return [self._delta({"type": "input_json_delta", "partial_json": event.text})]
            case CallEnded():
                return self._close()
            case ChoiceEnded():
                self._ended = event
                return self._close()
            case Ended():
                return self._finish(event.usage)
            case Broken():
                return [self._error(event)]
            case Echo():
                return []
            case _:
                assert_never(event)

    def _start(self, prompt_tokens: int) -> Frame:
        usage = _usage(Usage(prompt_tokens=prompt_tokens, output_tokens=0, cached_tokens=0))
        return frame("message_start", message=_message(self._facts, [], usage))

    def _text(self, text: str) -> list[Frame]:
        if not text:
            return []
        frames = [] if self._open == "text" else self._begin("text", _text_block(""))
        return [*frames, self._delta({"type": "text_delta", "text": text})]

    def _begin(self, kind: str, block: Mapping[str, Any]) -> list[Frame]:
        """The next block, after the end of the one before it."""
        closed = self._close()
        self._open = kind
        self._index += 1
        return [*closed, frame("content_block_start", index=self._index, content_block=block)]

    def _delta(self, delta: Mapping[str, Any]) -> Frame:
        return frame("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> list[Frame]:
        was_open, self._open = self._open, None
        if was_open is None:
            return []
        stop = frame("content_block_stop", index=self._index)
        if was_open == "thinking":
            return [self._delta({"type": "signature_delta", "signature": _signature(self._facts)}), stop]
        return [stop]

    def _finish(self, usage: Usage) -> list[Frame]:
        assert self._ended is not None, "an answer ends only after its choice"
        counts = _usage(usage)
        final = {name: counts[name] for name in CUMULATIVE_USAGE}
        detail = _finish_detail(self._ended)
        return [frame("message_delta", delta=_ending(self._ended), usage=final, **detail), frame("message_stop")]

    def _error(self, broken: Broken) -> Frame:
        refusal = Refusal(code=broken.code, message=broken.message)
        return json_frame(error_body(refusal, MESSAGES, self._facts.request_id), "error")


def frame(kind: str, **fields: Any) -> Frame:
    """One event of this API: its type stands both in the `event` line and in the data."""
    return json_frame({"type": kind, **fields}, kind)


PING: Final = frame("ping")
"""The keep-alive of this API: sent after `message_start`, and by the app while nothing else is said."""
