"""Folding the events of an answer into the whole answer, so that plain and streamed say the same by construction.

Owns the fold. In: `AnswerEvent`s. Out: an `Answer`, or the `Broken` that ended it. Knows no dialect.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from plimsoll_runtime.events import (
    AnswerEvent,
    Begun,
    Broken,
    CallArguments,
    CallBegun,
    CallEnded,
    CallEvent,
    ChoiceEnded,
    Echo,
    Ended,
    ReasoningDelta,
    TextDelta,
    TextLogprob,
)
from plimsoll_runtime.routes.dialect import Answer, Call, ChoiceAnswer, Reasoning


@dataclass(slots=True)
class _Thought:
    text_before: int
    texts: list[str] = field(default_factory=list)

    def whole(self) -> Reasoning:
        return Reasoning("".join(self.texts), self.text_before)


@dataclass(slots=True)
class _Choice:
    texts: list[str] = field(default_factory=list)
    logprobs: list[TextLogprob] = field(default_factory=list)
    begun: CallBegun | None = None
    arguments: list[str] = field(default_factory=list)
    inserts: list[Call | _Thought] = field(default_factory=list)
    echo: Echo | None = None
    ended: ChoiceEnded | None = None

    def add_call(self, event: CallEvent) -> None:
        """A call counts once it has ended: one that was cut or went wrong is no part of the answer."""
        match event:
            case CallBegun():
                self.begun, self.arguments = event, []
            case CallArguments():
                self.arguments.append(event.text)
            case CallEnded():
                assert self.begun is not None, "a call ends after it began"
                arguments = "".join(self.arguments)
                self.inserts.append(Call(self.begun.call_id, self.begun.name, arguments, self._text_before))

    def add_reasoning(self, text: str) -> None:
        """It grows as long as no text and no call comes between."""
        last = self.inserts[-1] if self.inserts else None
        if not isinstance(last, _Thought) or last.text_before != self._text_before:
            last = _Thought(self._text_before)
            self.inserts.append(last)
        last.texts.append(text)

    @property
    def _text_before(self) -> int:
        return sum(map(len, self.texts))

    def whole(self, choice: int) -> ChoiceAnswer:
        assert self.ended is not None, "Ended comes after the end of every choice"
        echo = self.echo
        return ChoiceAnswer(
            choice=choice,
            text="".join(self.texts),
            reason=self.ended.reason,
            detail=self.ended.detail,
            matched_stop=self.ended.matched_stop,
            output_tokens=self.ended.output_tokens,
            logprobs=tuple(self.logprobs),
            echo_text=echo.text if echo else "",
            echo_logprobs=echo.logprobs if echo else None,
            echo_token_texts=echo.prompt_token_texts if echo else (),
            inserts=tuple(insert if isinstance(insert, Call) else insert.whole() for insert in self.inserts),
        )


class AnswerFold:
    """Takes events one by one; `add` returns the answer with the last."""

    def __init__(self) -> None:
        self._choices: dict[int, _Choice] = {}

    def add(self, event: AnswerEvent) -> Answer | Broken | None:
        match event:
            case Begun():
                return None
            case Broken():
                return event
            case Ended():
                choices = tuple(choice.whole(index) for index, choice in sorted(self._choices.items()))
                return Answer(choices=choices, usage=event.usage)
            case _:
                self._add_to_choice(event)
                return None

    def _add_to_choice(self, event: Echo | TextDelta | ReasoningDelta | CallEvent | ChoiceEnded) -> None:
        choice = self._choices.setdefault(event.choice, _Choice())
        match event:
            case Echo():
                choice.echo = event
            case TextDelta():
                choice.texts.append(event.text)
                choice.logprobs.extend(event.logprobs)
            case ReasoningDelta():
                choice.add_reasoning(event.text)
            case CallBegun() | CallArguments() | CallEnded():
                choice.add_call(event)
            case ChoiceEnded():
                choice.ended = event


async def whole_answer(events: AsyncIterator[AnswerEvent]) -> Answer | Broken:
    """The answer once every choice has ended."""
    fold = AnswerFold()
    async for event in events:
        answer = fold.add(event)
        if answer is not None:
            return answer
    raise AssertionError("the events of an answer end with Ended or Broken")
