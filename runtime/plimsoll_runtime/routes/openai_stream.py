"""The stream that chat completions and completions have in common: which chunks each event of an answer becomes.

Owns the order of chunks and what every chunk carries. In: answer events, and a dialect's `ChoiceWriter` for what stands
inside a choice. Out: frames. Invariants: chunks of all choices first appear in order of index, which clients'
accumulators need; `usage` is null on all chunks but the last, and absent where not asked for; a stream that broke has
no [DONE], which would say that the answer is whole.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol, assert_never

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
from plimsoll_runtime.routes.dialect import AnswerFacts, Frame, json_frame
from plimsoll_runtime.routes.errors import error_body
from plimsoll_runtime.routes.openai_fields import ending_fields, heading, usage_body

DONE: Final = Frame("[DONE]")
Fields = Mapping[str, Any]
_GOES_ON: Final[Fields] = MappingProxyType({"finish_reason": None})


class ChoiceWriter(Protocol):
    """The fields of one choice in a chunk, beside `index` and `finish_reason`."""

    def opening(self) -> Fields | None:
        """The first chunk of every choice, or None where a choice begins with its text."""
        ...

    def echo(self, event: Echo) -> Fields: ...

    def delta(self, event: TextDelta) -> Fields: ...

    def reasoning(self, event: ReasoningDelta) -> Fields: ...

    def call(self, event: CallBegun | CallArguments) -> Fields: ...

    def ending(self) -> Fields: ...


class OpenAIStream:
    """The writer of one stream."""

    def __init__(self, facts: AnswerFacts, id_prefix: str, kind: str, choices: ChoiceWriter) -> None:
        self._facts = facts
        self._heading = heading(facts, id_prefix, kind)
        self._choices = choices

    def to_chunks(self, event: AnswerEvent) -> Iterable[Frame]:
        match event:
            case Begun():
                return self._openings()
            case Echo():
                return [self._chunk(event.choice, self._choices.echo(event))]
            case TextDelta():
                has_content = bool(event.text or event.logprobs)
                return [self._chunk(event.choice, self._choices.delta(event))] if has_content else []
            case ReasoningDelta():
                return [self._chunk(event.choice, self._choices.reasoning(event))]
            case CallBegun() | CallArguments():
                return [self._chunk(event.choice, self._choices.call(event))]
            case CallEnded():
                return []
            case ChoiceEnded():
                return [self._chunk(event.choice, self._choices.ending(), ending_fields(event))]
            case Ended():
                return self._end(event.usage)
            case Broken():
                return [json_frame(error_body(Refusal(event.code, event.message), self._facts.request.route, ""))]
            case _:
                assert_never(event)

    def _openings(self) -> Iterator[Frame]:
        for index in range(self._facts.num_choices):
            opening = self._choices.opening()
            if opening is not None:
                yield self._chunk(index, opening)

    def _chunk(self, index: int, fields: Fields, ending: Fields = _GOES_ON) -> Frame:
        choice = {"index": index, **fields, **ending}
        usage = {"usage": None} if self._facts.request.include_usage else {}
        return json_frame({**self._heading, "choices": [choice], **usage})

    def _end(self, usage: Usage) -> Iterator[Frame]:
        if self._facts.request.include_usage:
            yield json_frame({**self._heading, "choices": [], "usage": usage_body(usage)})
        yield DONE
