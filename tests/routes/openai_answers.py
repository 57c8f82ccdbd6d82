"""Scripted answers for the two OpenAI dialects: the same answer as events, cut at random, and folded by hand.

The folded answer is built from the script and not from the events, so it is a second opinion on what a stream says.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from plimsoll_runtime.contract.endpoints import Route
from plimsoll_runtime.events import (
    AnswerEvent,
    Begun,
    ChoiceEnded,
    Echo,
    Ended,
    FinishDetail,
    FinishReason,
    TextDelta,
    TextLogprob,
    Usage,
)
from plimsoll_runtime.request import GenerationRequest, TextPrompt, WireValue
from plimsoll_runtime.routes.dialect import Answer, AnswerFacts, ChoiceAnswer, Dialect, Frame


def facts_of(
    route: Route, *, num_choices: int = 1, logprobs: Any = None, include_usage: bool = False, echo: bool = False
) -> AnswerFacts:
    request = GenerationRequest(
        route=route,
        model="scripted",
        prompt_param="prompt",
        prompts=(TextPrompt("hi"),),
        wire={} if logprobs is None else {"logprobs": WireValue("logprobs", logprobs)},
        include_usage=include_usage,
        echo=echo,
    )
    return AnswerFacts(
        request_id="AAAABBBBCCCCDDDDEEEEFFFF",
        created=1_700_000_000,
        model="scripted",
        num_choices=num_choices,
        system_fingerprint="fp_scripted",
        request=request,
    )


def token(data: bytes, logprob: float = -0.5, top: tuple[tuple[bytes, float], ...] = ()) -> TextLogprob:
    """A token as the service describes it; its bytes need not be whole characters."""
    alternatives = tuple((alternative.decode(errors="ignore"), alternative, value) for alternative, value in top)
    return TextLogprob(1, data.decode(errors="ignore"), data, logprob, alternatives)


def choice_of(
    text: str,
    *,
    index: int = 0,
    reason: FinishReason = "stop",
    detail: FinishDetail | None = None,
    matched_stop: str | None = None,
    logprobs: tuple[TextLogprob, ...] = (),
    output_tokens: int = 3,
) -> ChoiceAnswer:
    return ChoiceAnswer(index, text, reason, detail, matched_stop, output_tokens, logprobs)


def answer_of(*choices: ChoiceAnswer) -> Answer:
    return Answer(choices, Usage(7, sum(choice.output_tokens for choice in choices), 2))


@dataclass(frozen=True)
class Script:
    """One answer, in both forms."""

    answer: Answer
    events: tuple[AnswerEvent, ...]


def events_of(answer: Answer, pieces: Mapping[int, list[TextDelta]], order: list[int]) -> tuple[AnswerEvent, ...]:
    """All events of an answer; `order` names the choice that speaks next, what is left is said at the end."""
    queues: dict[int, list[AnswerEvent]] = {}
    for choice in answer.choices:
        queue: list[AnswerEvent] = []
        if choice.echo_text:
            queue.append(Echo(choice.choice, choice.echo_text, choice.echo_logprobs, choice.echo_token_texts))
        queue.extend(pieces[choice.choice])
        queue.append(
            ChoiceEnded(choice.choice, choice.reason, choice.detail, choice.matched_stop, choice.output_tokens)
        )
        queues[choice.choice] = queue
    events: list[AnswerEvent] = [Begun(7)]
    for index in [*order, *(index for index, queue in queues.items() for _ in queue)]:
        if queues[index]:
            events.append(queues[index].pop(0))
    return (*events, Ended(answer.usage))


def whole_pieces(answer: Answer) -> dict[int, list[TextDelta]]:
    """Each choice in one delta."""
    return {c.choice: [TextDelta(c.choice, c.text, c.logprobs)] for c in answer.choices}


TEXTS = st.text(st.sampled_from('ab \n"\\{}\u2028é你🌍👩‍👧\x00'), max_size=12)
ENDINGS: st.SearchStrategy[tuple[FinishReason, FinishDetail | None, str | None]] = st.sampled_from(
    [
        ("stop", None, None),
        ("stop", None, "END"),
        ("length", FinishDetail("request", 3), None),
        ("length", FinishDetail("deadline", 3), None),
    ]
)


@st.composite
def scripts(draw: st.DrawFn, *, with_logprobs: bool, with_echo: bool = False) -> Script:
    """An answer of one to three choices: tokens cut inside characters, deltas cut elsewhere, choices interleaved."""
    choices: list[ChoiceAnswer] = []
    pieces: dict[int, list[TextDelta]] = {}
    for index in range(draw(st.integers(1, 3))):
        choice = _drawn_choice(draw, index, with_logprobs)
        pieces[index] = _drawn_pieces(draw, choice)
        choices.append(_echoing(draw, choice, with_logprobs) if with_echo else choice)
    answer = answer_of(*choices)
    order = draw(st.lists(st.sampled_from(range(len(choices))), max_size=20))
    return Script(answer, events_of(answer, pieces, order))


def _drawn_choice(draw: st.DrawFn, index: int, with_logprobs: bool) -> ChoiceAnswer:
    text = draw(TEXTS)
    reason, detail, matched_stop = draw(ENDINGS)
    data = text.encode()
    tokens = tuple(token(data[cut], top=((data[cut], -0.5), (b"\xf0", -1.0))) for cut in draw(_cuts(len(data))))
    return choice_of(
        text,
        index=index,
        reason=reason,
        detail=detail,
        matched_stop=matched_stop,
        logprobs=tokens if with_logprobs else (),
        output_tokens=len(tokens),
    )


def _echoing(draw: st.DrawFn, choice: ChoiceAnswer, with_logprobs: bool) -> ChoiceAnswer:
    prompt = "x" + draw(TEXTS)
    data = prompt.encode()
    tokens = [token(data[cut]) for cut in draw(_cuts(len(data)))]
    return replace(
        choice,
        echo_text=prompt,
        echo_logprobs=(None, *tokens[1:]) if with_logprobs else None,
        echo_token_texts=tuple(entry.text for entry in tokens),
    )


def _cuts(length: int) -> st.SearchStrategy[list[slice]]:
    """Pieces that make up a whole of this length, in order; none where it is empty."""
    places = st.lists(st.integers(0, length), max_size=6).map(lambda cut: sorted({0, *cut, length}))
    return places.map(lambda at: [slice(start, end) for start, end in pairwise(at)])


def _drawn_pieces(draw: st.DrawFn, choice: ChoiceAnswer) -> list[TextDelta]:
    """The text and the tokens, each in order, but cut independently of one another."""
    deltas = []
    tokens = list(choice.logprobs)
    for cut in draw(_cuts(len(choice.text))):
        taken = draw(st.integers(0, len(tokens)))
        deltas.append(TextDelta(choice.choice, choice.text[cut], tuple(tokens[:taken])))
        tokens = tokens[taken:]
    return [*deltas, TextDelta(choice.choice, "", tuple(tokens))]


def frames_of(dialect: Dialect, facts: AnswerFacts, events: Iterable[AnswerEvent]) -> list[Frame]:
    writer = dialect.stream_writer(facts)
    return [frame for event in events for frame in writer.to_chunks(event)]


def chunks_of(frames: Iterable[Frame]) -> list[dict[str, Any]]:
    """The JSON of every frame but [DONE]; each must be JSON on its own."""
    return [json.loads(frame.data, parse_constant=_not_json) for frame in frames if frame.data != "[DONE]"]


def transcript(frames: Iterable[Frame]) -> str:
    return "".join(f"data: {frame.data}\n\n" for frame in frames)


def strict_json(value: Any) -> str:
    """What the server would send; raises for a number that is not finite."""
    return json.dumps(value, allow_nan=False)


def _not_json(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
