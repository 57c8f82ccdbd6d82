"""What the engine says about a request, token by token; and what the service makes of it, in text.

Owns the two small languages. Engine events carry token ids and never text; answer events carry text and never ids
alone. Invariant: a request ends in exactly one `Finished` per choice, or in one `Expired` or `Failed` for the whole
request, or in one `Aborted` at its deadline; after an abort by its client nothing more is said.
"""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]
"""Why the engine ended a choice."""
AnswerReason = Literal["stop", "length", "tool_calls"]
"""Why a choice of an answer ended: `tool_calls` where it ended by itself and calls tools."""
FailureCode = Literal["engine_failure", "invalid_value"]
FinishDetailType = Literal["request", "default", "limit", "context", "deadline", "repetition"]


@dataclass(frozen=True, slots=True)
class FinishDetail:
    """What ended a choice by `length`, at which output token; of a repetition also its period and number of copies."""

    type: FinishDetailType
    at: int
    period: int | None = None
    copies: int | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logs under the model's own distribution (before temperature, penalties and bias): the chosen token's,
    and the likeliest alternatives as (token id, logprob), best first."""

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Started:
    """The request's first sequence got a slot: from here on a stream may begin."""

    request_id: str


@dataclass(frozen=True, slots=True)
class PrefillDone:
    """One choice's prompt is computed. `prompt_logprobs` has one entry per prompt token, the first None."""

    request_id: str
    choice: int
    cached_tokens: int
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token, end tokens included: the count of these is what usage reports."""

    request_id: str
    choice: int
    token_id: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Paused:
    """None of the request's sequences has a slot any more; their progress is kept."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """After `Paused`: one of the request's sequences has a slot again."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Finished:
    """A choice ended. `stop`: on one of its stop token ids; `length`: at its budget, deadline or as a repetition, as
    `detail` says."""

    request_id: str
    choice: int
    reason: FinishReason
    detail: FinishDetail | None = None


@dataclass(frozen=True, slots=True)
class Expired:
    """Not started by its queue deadline; nothing was computed."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Aborted:
    """Started, but not done at its deadline, and its client wants all or nothing (`deadline_action` abort)."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The request cannot go on; no other request is touched. `invalid_value`: its own words are the reason."""

    request_id: str
    message: str
    code: FailureCode = "engine_failure"


EngineEvent = Started | PrefillDone | Token | Paused | Resumed | Finished | Expired | Aborted | Failed


@dataclass(frozen=True, slots=True)
class TextLogprob:
    """A token with the bytes it stands for; `text` is those bytes as far as they are characters."""

    token_id: int
    text: str
    token_bytes: bytes
    logprob: float
    top: tuple[tuple[str, bytes, float], ...]


@dataclass(frozen=True, slots=True)
class Begun:
    """The stream may begin. Tokens of all prompts together; a choice's own prompt is `prompts[choice // n]`."""

    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Echo:
    """Only with `echo`: the prompt of one choice as text, and its logprobs where asked for (the first None)."""

    choice: int
    text: str
    logprobs: tuple[TextLogprob | None, ...] | None
    prompt_token_texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of one choice, never a part of a character, never a part of a possible stop string.

    `logprobs` are those of the tokens sampled since the last delta, so `text` may be empty while they are not.
    """

    choice: int
    text: str
    logprobs: tuple[TextLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """New text of one choice's reasoning, where the server reads it apart; never a part of a character or of a tag."""

    choice: int
    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """The choice calls a tool. `call` counts its calls from 0; `call_id` nobody else has."""

    choice: int
    call: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments of the call that began last: pieces of one JSON object, as the model wrote it."""

    choice: int
    call: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The call that began last is complete. One that never ends was cut or went wrong, and must not be run."""

    choice: int
    call: int


@dataclass(frozen=True, slots=True)
class ChoiceEnded:
    """A choice is complete; `matched_stop` is the stop string or None, `output_tokens` counts sampled ids, of which
    `reasoning_tokens` are a part."""

    choice: int
    reason: AnswerReason
    detail: FinishDetail | None
    matched_stop: str | None
    output_tokens: int
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of the whole request. `cached_tokens` and `reasoning_tokens` are parts of the first two, not additions."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """Every choice has ended; the last event of an answer that did not fail."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class Broken:
    """The answer cannot be completed: the engine failed, what was asked for cannot be written, the server is stopping,
    or the deadline came first."""

    code: FailureCode | Literal["unavailable", "deadline_exceeded"]
    message: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Beside the answer, for whoever watches its stream: it lost its slot for a while, or has one again."""

    word: Literal["paused", "resumed"]


CallEvent = CallBegun | CallArguments | CallEnded
AnswerEvent = Begun | Echo | TextDelta | ReasoningDelta | CallEvent | ChoiceEnded | Ended | Broken
