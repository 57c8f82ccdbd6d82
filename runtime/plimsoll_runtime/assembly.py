"""From sampled tokens to the text a client may see: one choice's detokenizer, stop matcher and counts.

Owns the order of things: a token is counted, becomes bytes, becomes characters, is held back while it may be part of a
stop string, and only then is text. In: engine tokens of one choice. Out: `TextDelta`s and one `ChoiceEnded`.
Invariants: every sampled id is counted, end tokens included; the text of an end token is never shown; nothing of
a matched stop string or after it leaves; log probabilities leave with the text they belong to.
"""

from collections import deque
from dataclasses import dataclass

from plimsoll_runtime.events import (
    ChoiceEnded,
    FinishDetail,
    FinishReason,
    TextDelta,
    TextLogprob,
    Token,
    TokenLogprobs,
)
from plimsoll_runtime.text.detokenizer import Detokenizer
from plimsoll_runtime.text.stop_strings import StopMatcher
from plimsoll_runtime.text.tokenizer import Tokenizer


@dataclass(slots=True)
class _HeldLogprob:
    """A token's log probability, and where its text begins in the characters of the choice."""

    start: int
    logprob: TextLogprob


class ChoiceAssembly:
    """The text of one choice while it grows. `ended` is None until the choice has ended."""

    def __init__(
        self,
        choice: int,
        tokenizer: Tokenizer,
        matcher: StopMatcher | None,
        stop_token_ids: frozenset[int],
        min_tokens: int,
    ) -> None:
        """`matcher` is this choice's own; None: no stop strings."""
        self._choice = choice
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._matcher = matcher
        self._stop_token_ids = stop_token_ids
        self._min_tokens = min_tokens
        self._held: deque[_HeldLogprob] = deque()
        self._characters = 0
        self._released = 0
        self.output_tokens = 0
        self.ended: ChoiceEnded | None = None

    def push(self, token: Token) -> TextDelta | None:
        """The new text of one token, or None. Sets `ended` when a stop string is complete."""
        self.output_tokens += 1
        if token.logprobs is not None:
            logprob = text_logprob(self._tokenizer, token.token_id, token.logprobs)
            self._held.append(_HeldLogprob(self._characters, logprob))
        if token.token_id in self._stop_token_ids:
            return None
        text = self._detokenizer.push(token.token_id)
        return self._release(text, self.output_tokens <= self._min_tokens)

    def finish(self, reason: FinishReason, detail: FinishDetail | None) -> TextDelta | None:
        """The last text, and `ended` set. A stop string completed by the very last characters still counts."""
        delta = self._release(self._detokenizer.flush(), False)
        if self.ended is None:
            rest = self._matcher.flush() if self._matcher else ""
            delta = self._join(delta, rest, self._take_logprobs(None))
            self.ended = self._end(reason, detail, None)
        return delta

    def _release(self, text: str, is_below_min_tokens: bool) -> TextDelta | None:
        self._characters += len(text)
        matched: str | None = None
        if self._matcher is not None and not is_below_min_tokens:
            text, matched = self._matcher.push(text)
        self._released += len(text)
        logprobs = self._take_logprobs(self._released)
        if matched is not None:
            self.ended = self._end("stop", None, matched)
        return TextDelta(self._choice, text, logprobs) if text or logprobs else None

    def _take_logprobs(self, released: int | None) -> tuple[TextLogprob, ...]:
        """Those whose text begins before `released` characters; all of them for None."""
        taken: list[TextLogprob] = []
        while self._held and (released is None or self._held[0].start < released):
            taken.append(self._held.popleft().logprob)
        return tuple(taken)

    def _join(self, delta: TextDelta | None, text: str, logprobs: tuple[TextLogprob, ...]) -> TextDelta | None:
        if delta is not None:
            text, logprobs = delta.text + text, delta.logprobs + logprobs
        return TextDelta(self._choice, text, logprobs) if text or logprobs else None

    def _end(self, reason: FinishReason, detail: FinishDetail | None, matched: str | None) -> ChoiceEnded:
        return ChoiceEnded(self._choice, reason, detail, matched, self.output_tokens)


def text_logprob(tokenizer: Tokenizer, token_id: int, logprobs: TokenLogprobs) -> TextLogprob:
    """Token ids with the bytes they stand for; bytes that are no character show as U+FFFD in `text` only."""
    token_bytes = tokenizer.token_bytes(token_id)
    top = tuple((*_text_and_bytes(tokenizer, other), logprob) for other, logprob in logprobs.top)
    return TextLogprob(token_id, token_bytes.decode("utf-8", "replace"), token_bytes, logprobs.logprob, top)


def _text_and_bytes(tokenizer: Tokenizer, token_id: int) -> tuple[str, bytes]:
    token_bytes = tokenizer.token_bytes(token_id)
    return token_bytes.decode("utf-8", "replace"), token_bytes
