"""What a dialect is: three pure converters, and the facts that an answer needs besides its events.

Owns the protocol that chat_completions, completions, messages and responses implement and generate.py runs. A dialect
never sees configuration, a tokenizer or the engine. Invariant: the plain answer and the concatenated stream say the
same.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from plimsoll_runtime.contract.endpoints import Route
from plimsoll_runtime.events import AnswerEvent, AnswerReason, FinishDetail, TextLogprob, Usage
from plimsoll_runtime.refusal import Refusal
from plimsoll_runtime.request import GenerationRequest


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """What every answer of one request repeats: ids made by the server, the time in whole seconds."""

    request_id: str
    created: int
    model: str
    num_choices: int
    system_fingerprint: str
    request: GenerationRequest


@dataclass(frozen=True, slots=True)
class Call:
    """One complete tool call; `arguments` is the JSON object that the model wrote. `text_before`: characters of the
    choice's text that came before it."""

    call_id: str
    name: str
    arguments: str
    text_before: int


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What the model thought, in one piece, where the server reads it apart. `text_before` as of a `Call`."""

    text: str
    text_before: int


@dataclass(frozen=True, slots=True)
class ChoiceAnswer:
    """One complete choice. `echo_text` is the prompt where `echo` was asked for, else empty. `inserts` stand in the
    text, in order, each behind its `text_before`."""

    choice: int
    text: str
    reason: AnswerReason
    detail: FinishDetail | None
    matched_stop: str | None
    output_tokens: int
    logprobs: tuple[TextLogprob, ...]
    echo_text: str = ""
    echo_logprobs: tuple[TextLogprob | None, ...] | None = None
    echo_token_texts: tuple[str, ...] = ()
    inserts: tuple[Call | Reasoning, ...] = ()

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(insert for insert in self.inserts if isinstance(insert, Call))

    @property
    def reasoning(self) -> str | None:
        """All that the model thought, None where there is nothing."""
        texts = [insert.text for insert in self.inserts if isinstance(insert, Reasoning)]
        return "".join(texts) if texts else None

    def parts(self) -> Iterator[str | Call | Reasoning]:
        """Texts, calls and reasoning in the order in which they came; no text is empty."""
        done = 0
        for insert in self.inserts:
            if insert.text_before > done:
                yield self.text[done : insert.text_before]
            yield insert
            done = insert.text_before
        if done < len(self.text):
            yield self.text[done:]


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, folded from its events (routes/answer.py), choices in order of index."""

    choices: tuple[ChoiceAnswer, ...]
    usage: Usage


@dataclass(frozen=True, slots=True)
class Frame:
    """One server-sent event: `data` is JSON or a literal such as [DONE]; `event` only where the dialect names it."""

    data: str
    event: str | None = None


def json_frame(value: Mapping[str, Any], event: str | None = None) -> Frame:
    """ASCII alone: some clients split a stream at every character that Unicode calls a line break."""
    return Frame(json.dumps(value, allow_nan=False, separators=(",", ":")), event)


def finish_detail_body(detail: FinishDetail) -> dict[str, Any]:
    """What ended an answer early, the same on every route: the kind of limit, and at which output token."""
    body: dict[str, Any] = {"type": detail.type, "at": detail.at}
    if detail.type == "repetition":
        body |= {"period": detail.period, "copies": detail.copies}
    return body


class StreamWriter(Protocol):
    """Turns the events of one answer into frames; made anew for each stream, holds only what was already said."""

    def to_chunks(self, event: AnswerEvent) -> Iterable[Frame]:
        """Frames for one event, in order; `Ended` and `Broken` give the last ones."""
        ...


class Dialect(Protocol):
    """One API. `to_request` gives a Refusal for a body of the wrong shape and never raises on client input."""

    route: Route

    def to_request(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> GenerationRequest | Refusal: ...

    def to_response(self, answer: Answer, facts: AnswerFacts) -> dict[str, Any]: ...

    def stream_writer(self, facts: AnswerFacts) -> StreamWriter: ...
