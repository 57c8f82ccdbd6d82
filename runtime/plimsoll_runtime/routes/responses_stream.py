"""The events of a streamed `/v1/responses` answer.

Owns their order and numbers. In: the events of one answer. Out: frames that each carry `event` and `data`. It knows no
request fields. Invariants: `sequence_number` counts from 0 without gaps; the order is created, in_progress, item added,
part added, text deltas, text done, part done, item done, and one terminal event, whose object is the body of the plain
answer. Source: OpenAI's API reference, "Streaming events", and what its SDK's accumulator accepts.
"""

from collections.abc import Iterable
from typing import Any, assert_never

from plimsoll_runtime.events import AnswerEvent, Begun, Broken, ChoiceEnded, Echo, Ended, TextDelta, TextLogprob, Usage
from plimsoll_runtime.routes.dialect import Answer, AnswerFacts, ChoiceAnswer, Frame, json_frame
from plimsoll_runtime.routes.responses_object import (
    failed_response,
    finished_response,
    item_status,
    logprob_entries,
    message_item,
    response_object,
    text_part,
)


class ResponsesStream:
    """The writer of one stream. It keeps all that was said, because the last events repeat it whole."""

    def __init__(self, facts: AnswerFacts) -> None:
        self._facts = facts
        self._sequence_number = 0
        self._texts: list[str] = []
        self._logprobs: list[TextLogprob] = []
        self._item_is_open = False
        self._ended: ChoiceEnded | None = None

    def to_chunks(self, event: AnswerEvent) -> Iterable[Frame]:
        """Frames for one event; `Ended` gives `response.completed` or `.incomplete`, `Broken` `response.failed`."""
        match event:
            case Begun():
                return self._start()
            case TextDelta():
                return self._delta(event)
            case ChoiceEnded():
                return self._close_item(event)
            case Ended():
                return [self._finish(event.usage)]
            case Broken():
                return [self._fail(event)]
            case Echo():
                return []
            case _:
                assert_never(event)

    def _start(self) -> list[Frame]:
        """The item opens at once: every answer has its message, an empty one too."""
        self._item_is_open = True
        return [
            self._frame("response.created", response=response_object(self._facts, "in_progress", [])),
            self._frame("response.in_progress", response=response_object(self._facts, "in_progress", [])),
            self._frame(
                "response.output_item.added", output_index=0, item=message_item(self._facts, "in_progress", [])
            ),
            self._part_frame("response.content_part.added", part=text_part("")),
        ]

    def _delta(self, event: TextDelta) -> list[Frame]:
        if not event.text and not event.logprobs:
            return []
        self._texts.append(event.text)
        self._logprobs.extend(event.logprobs)
        logprobs = logprob_entries(event.logprobs)
        return [self._part_frame("response.output_text.delta", delta=event.text, logprobs=logprobs)]

    def _close_item(self, ended: ChoiceEnded) -> list[Frame]:
        self._ended = ended
        self._item_is_open = False
        part = self._part()
        item = message_item(self._facts, item_status(ended.reason), [part])
        return [
            self._part_frame("response.output_text.done", text=part["text"], logprobs=part["logprobs"]),
            self._part_frame("response.content_part.done", part=part),
            self._frame("response.output_item.done", output_index=0, item=item),
        ]

    def _finish(self, usage: Usage) -> Frame:
        assert self._ended is not None, "an answer ends only after its choice"
        response = finished_response(Answer((self._choice(self._ended),), usage), self._facts)
        return self._frame(f"response.{response['status']}", response=response)

    def _fail(self, broken: Broken) -> Frame:
        output = [message_item(self._facts, "incomplete", [self._part()])] if self._item_is_open else []
        return self._frame("response.failed", response=failed_response(self._facts, broken.message, output))

    def _choice(self, ended: ChoiceEnded) -> ChoiceAnswer:
        return ChoiceAnswer(
            choice=0,
            text="".join(self._texts),
            reason=ended.reason,
            detail=ended.detail,
            matched_stop=ended.matched_stop,
            output_tokens=ended.output_tokens,
            logprobs=tuple(self._logprobs),
        )

    def _part(self) -> dict[str, Any]:
        return text_part("".join(self._texts), self._logprobs)

    def _part_frame(self, kind: str, **fields: Any) -> Frame:
        return self._frame(kind, item_id=f"msg_{self._facts.request_id}", output_index=0, content_index=0, **fields)

    def _frame(self, kind: str, **fields: Any) -> Frame:
        event = {"type": kind, "sequence_number": self._sequence_number, **fields}
        self._sequence_number += 1
        return json_frame(event, kind)
