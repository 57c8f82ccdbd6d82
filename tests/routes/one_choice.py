"""Answers with one choice, as events and whole, for the two dialects that never have more than one."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from hypothesis import strategies as st

from plimsoll_runtime.events import (
    AnswerEvent,
    Begun,
    ChoiceEnded,
    Ended,
    FinishDetail,
    FinishReason,
    TextDelta,
    TextLogprob,
    Usage,
)
from plimsoll_runtime.request import GenerationRequest
from plimsoll_runtime.routes.dialect import Answer, AnswerFacts, ChoiceAnswer, Dialect, Frame

REQUEST_ID = "AAAABBBBCCCCDDDDEEEEFFFF"
PROMPT_TOKENS = 7


def facts_of(request: GenerationRequest) -> AnswerFacts:
    return AnswerFacts(
        request_id=REQUEST_ID,
        created=1_700_000_000,
        model="scripted",
        num_choices=1,
        system_fingerprint="fp_scripted",
        request=request,
    )


def answer_of(
    text: str,
    *,
    reason: FinishReason = "stop",
    detail: FinishDetail | None = None,
    matched_stop: str | None = None,
    output_tokens: int = 3,
    cached_tokens: int = 2,
    logprobs: tuple[TextLogprob, ...] = (),
) -> Answer:
    choice = ChoiceAnswer(0, text, reason, detail, matched_stop, output_tokens, logprobs)
    return Answer((choice,), Usage(PROMPT_TOKENS, output_tokens, cached_tokens))


def events_of(answer: Answer, *deltas: TextDelta) -> list[AnswerEvent]:
    """The events of an answer; without `deltas` its text comes at once."""
    choice = answer.choices[0]
    said = deltas if deltas else (TextDelta(0, choice.text, choice.logprobs),)
    end = ChoiceEnded(0, choice.reason, choice.detail, choice.matched_stop, choice.output_tokens)
    return [Begun(PROMPT_TOKENS), *said, end, Ended(answer.usage)]


def token(text: str) -> TextLogprob:
    """A token with one alternative, as likely as can be written down exactly."""
    return TextLogprob(1, text, text.encode(), -0.5, ((text, text.encode(), -0.5),))


_ENDINGS: st.SearchStrategy[tuple[FinishReason, FinishDetail | None, str | None]] = st.sampled_from(
    [
        ("stop", None, None),
        ("stop", None, "END"),
        ("length", FinishDetail("request", 3), None),
        ("length", FinishDetail("context", 3), None),
        ("length", FinishDetail("deadline", 3), None),
    ]
)


@st.composite
def cut_answers(draw: st.DrawFn, *, with_logprobs: bool = False) -> tuple[Answer, list[AnswerEvent]]:
    """An answer, and its events with the text cut anywhere: by character, unevenly, with empty pieces."""
    pieces = draw(st.lists(st.text(st.sampled_from('ab \n"\\{}\u2028é你🌍\x00'), max_size=4), max_size=6))
    tokens = [(token(piece),) if with_logprobs else () for piece in pieces]
    reason, detail, matched_stop = draw(_ENDINGS)
    answer = answer_of(
        "".join(pieces),
        reason=reason,
        detail=detail,
        matched_stop=matched_stop,
        output_tokens=len(pieces),
        logprobs=tuple(entry for entries in tokens for entry in entries),
    )
    deltas = [TextDelta(0, piece, entries) for piece, entries in zip(pieces, tokens, strict=True)]
    return answer, events_of(answer, *deltas, TextDelta(0, ""))


def frames_of(dialect: Dialect, facts: AnswerFacts, events: Iterable[AnswerEvent]) -> list[Frame]:
    writer = dialect.stream_writer(facts)
    return [frame for event in events for frame in writer.to_chunks(event)]


def data_of(frames: Iterable[Frame]) -> list[dict[str, Any]]:
    """The data of every frame; each is JSON on its own, and says the same as its event line."""
    events: list[dict[str, Any]] = []
    for frame in frames:
        assert frame.data.isascii(), "a client that splits lines at U+2028 must not be cut"
        event = json.loads(frame.data)
        assert frame.event == event["type"]
        events.append(event)
    return events


def transcript(frames: Iterable[Frame]) -> str:
    return "".join(f"event: {frame.event}\ndata: {frame.data}\n\n" for frame in frames)


def as_json(value: Mapping[str, Any]) -> dict[str, Any]:
    """What a client reads of it; raises for what is not JSON."""
    return dict(json.loads(json.dumps(value, allow_nan=False)))
