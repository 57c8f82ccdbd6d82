"""The events of a streamed `/v1/responses` answer.

Owns their order and numbers. In: the events of one answer. Out: frames that each carry `event` and `data`. It knows no
wire name of a request. Invariants: `sequence_number` counts from 0 without gaps; the order is created, in_progress, and
per item added, deltas, done, item done (messages and reasoning have a part around their deltas), and one terminal
event, whose object is the body of the plain answer: a call that was cut is done as incomplete, and is not in it.
Source: OpenAI's API reference, "Streaming events", and what its SDK's accumulator accepts.
"""

from collections.abc import Iterable
from typing import Any, assert_never

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
    TextLogprob,
)
from plimsoll_runtime.routes.answer import AnswerFold
from plimsoll_runtime.routes.dialect import Answer, AnswerFacts, Frame, json_frame
from plimsoll_runtime.routes.responses_object import (
    ItemStatus,
    call_item,
    call_item_id,
    failed_response,
    finished_response,
    item_status,
    logprob_entries,
    message_id,
    message_item,
    reasoning_id,
    reasoning_item,
    reasoning_part,
    response_object,
    text_part,
)


class ResponsesStream:
    """The writer of one stream. It keeps all that was said, because the last events repeat it whole."""

    def __init__(self, facts: AnswerFacts) -> None:
        self._facts = facts
        self._sequence_number = 0
        self._fold = AnswerFold()
        self._items: list[_Item] = []
        self._open: _Item | None = None

    def to_chunks(self, event: AnswerEvent) -> Iterable[Frame]:
        """Frames for one event; `Ended` gives `response.completed` or `.incomplete`, `Broken` `response.failed`."""
        answer = self._fold.add(event)
        match event:
            case Begun():
                return self._start()
            case TextDelta():
                return self._text(event)
            case ReasoningDelta():
                return self._reason(event.text)
            case CallBegun():
                return [*self._break_off(), self._begin(_Call(len(self._items), event))]
            case CallArguments():
                return [self._arguments(event.text)]
            case CallEnded():
                return self._close("completed")
            case ChoiceEnded():
                return self._end_choice(event)
            case Ended():
                assert isinstance(answer, Answer), "the fold is complete with the last event"
                response = finished_response(answer, self._facts)
                return [self._frame(f"response.{response['status']}", response=response)]
            case Broken():
                return [self._fail(event)]
            case Echo():
                return []
            case _:
                assert_never(event)

    def _start(self) -> list[Frame]:
        response = response_object(self._facts, "in_progress", [])
        return [self._frame(f"response.{kind}", response=response) for kind in ("created", "in_progress")]

    def _text(self, event: TextDelta) -> list[Frame]:
        if not event.text and not event.logprobs:
            return []
        frames: list[Frame] = []
        message = self._open
        if not isinstance(message, _Message):
            frames = [*self._break_off(), *self._open_message()]
            message = self._open
        assert isinstance(message, _Message), "it was opened just now"
        message.texts.append(event.text)
        message.logprobs.extend(event.logprobs)
        logprobs = logprob_entries(event.logprobs)
        return [*frames, self._part_frame(message, "response.output_text.delta", delta=event.text, logprobs=logprobs)]

    def _open_message(self) -> list[Frame]:
        ordinal = sum(isinstance(item, _Message) for item in self._items)
        message = _Message(len(self._items), self._facts, ordinal)
        added = self._begin(message)
        return [added, self._part_frame(message, "response.content_part.added", part=text_part(""))]

    def _reason(self, text: str) -> list[Frame]:
        frames: list[Frame] = []
        reasoning = self._open
        if not isinstance(reasoning, _Reasoning):
            frames = self._break_off()
            ordinal = sum(isinstance(item, _Reasoning) for item in self._items)
            reasoning = _Reasoning(len(self._items), reasoning_id(self._facts, ordinal))
            frames.append(self._begin(reasoning))
            frames.append(self._part_frame(reasoning, "response.content_part.added", part=reasoning_part("")))
        reasoning.texts.append(text)
        return [*frames, self._part_frame(reasoning, "response.reasoning_text.delta", delta=text)]

    def _begin(self, item: "_Item") -> Frame:
        self._items.append(item)
        self._open = item
        shown = item.item("in_progress", is_empty=True)
        return self._frame("response.output_item.added", output_index=item.output_index, item=shown)

    def _arguments(self, text: str) -> Frame:
        call = self._open
        assert isinstance(call, _Call), "arguments come inside a call"
        call.arguments.append(text)
        kind = "response.function_call_arguments.delta"
        return self._frame(kind, item_id=call.item_id, output_index=call.output_index, delta=text)

    def _end_choice(self, ended: ChoiceEnded) -> list[Frame]:
        opened = [] if self._items else self._open_message()
        return [*opened, *self._break_off(item_status(ended.reason))]

    def _break_off(self, status: ItemStatus = "completed") -> list[Frame]:
        """Closes what is open; a call that is still open never ended."""
        return self._close("incomplete" if isinstance(self._open, _Call) else status)

    def _close(self, status: ItemStatus) -> list[Frame]:
        item, self._open = self._open, None
        match item:
            case None:
                return []
            case _Message():
                part = item.part()
                done = [
                    self._part_frame(item, "response.output_text.done", text=part["text"], logprobs=part["logprobs"]),
                    self._part_frame(item, "response.content_part.done", part=part),
                ]
            case _Reasoning():
                part = item.part()
                done = [
                    self._part_frame(item, "response.reasoning_text.done", text=part["text"]),
                    self._part_frame(item, "response.content_part.done", part=part),
                ]
            case _Call():
                place = {"item_id": item.item_id, "output_index": item.output_index}
                text = "".join(item.arguments)
                kind = "response.function_call_arguments.done"
                done = [self._frame(kind, **place, name=item.begun.name, arguments=text)]
        shown = item.item(status)
        return [*done, self._frame("response.output_item.done", output_index=item.output_index, item=shown)]

    def _fail(self, broken: Broken) -> Frame:
        output = [item.item("incomplete" if item is self._open else "completed") for item in self._items]
        return self._frame("response.failed", response=failed_response(self._facts, broken.message, output))

    def _part_frame(self, item: "_Message | _Reasoning", kind: str, **fields: Any) -> Frame:
        place = {"item_id": item.item_id, "output_index": item.output_index, "content_index": 0}
        return self._frame(kind, **place, **fields)

    def _frame(self, kind: str, **fields: Any) -> Frame:
        event = {"type": kind, "sequence_number": self._sequence_number, **fields}
        self._sequence_number += 1
        return json_frame(event, kind)


class _Message:
    """A text of the answer, as far as it was said; `ordinal` counts messages."""

    def __init__(self, output_index: int, facts: AnswerFacts, ordinal: int) -> None:
        self.output_index = output_index
        self.item_id = message_id(facts, ordinal)
        self._facts = facts
        self._ordinal = ordinal
        self.texts: list[str] = []
        self.logprobs: list[TextLogprob] = []

    def part(self) -> dict[str, Any]:
        return text_part("".join(self.texts), self.logprobs)

    def item(self, status: ItemStatus, *, is_empty: bool = False) -> dict[str, Any]:
        return message_item(self._facts, self._ordinal, status, [] if is_empty else [self.part()])


class _Reasoning:
    """What the model thought, as far as it was said."""

    def __init__(self, output_index: int, item_id: str) -> None:
        self.output_index = output_index
        self.item_id = item_id
        self.texts: list[str] = []

    def part(self) -> dict[str, Any]:
        return reasoning_part("".join(self.texts))

    def item(self, status: ItemStatus, *, is_empty: bool = False) -> dict[str, Any]:
        return reasoning_item(self.item_id, status, [] if is_empty else [self.part()])


class _Call:
    """A call, as far as it was written."""

    def __init__(self, output_index: int, begun: CallBegun) -> None:
        self.output_index = output_index
        self.begun = begun
        self.item_id = call_item_id(begun.call_id)
        self.arguments: list[str] = []

    def item(self, status: ItemStatus, *, is_empty: bool = False) -> dict[str, Any]:
        arguments = "" if is_empty else "".join(self.arguments)
        return call_item(self.begun.call_id, self.begun.name, arguments, status)


_Item = _Message | _Reasoning | _Call
