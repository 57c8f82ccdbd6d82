"""From sampled tokens to the text a client may see: one choice's detokenizer, parser, stop matcher and counts.

Owns the order of things: a token is counted, becomes bytes, becomes characters, is told apart from tool calls where
there are tools, is held back while it may be part of a stop string, and only then is text. In: engine tokens of one
choice. Out: what is said of it, and one `ChoiceEnded`. Invariants: every sampled id is counted, end tokens included;
the text of an end token is never shown; nothing of a matched stop string or after it leaves, and no stop string is
looked for inside a call; log probabilities leave with the text they belong to, or, where there are tools, as they come.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from plimsoll_runtime.events import (
    AnswerReason,
    CallArguments,
    CallBegun,
    CallEnded,
    CallEvent,
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
from plimsoll_runtime.text.tool_calls import pieces
from plimsoll_runtime.text.tool_calls.parser import ToolCallParser

Said = TextDelta | CallEvent


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
        calls: "CallReading | None" = None,
    ) -> None:
        """`matcher` is this choice's own; None: no stop strings. `calls` too; None: no tools."""
        self._choice = choice
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, calls.shown_ids if calls else frozenset())
        self._calls = calls
        self._matcher = matcher
        self._stop_token_ids = stop_token_ids
        self._min_tokens = min_tokens
        self._held: deque[_HeldLogprob] = deque()
        self._characters = 0
        self._released = 0
        self.output_tokens = 0
        self.ended: ChoiceEnded | None = None

    def push(self, token: Token) -> list[Said]:
        """What one token lets be said, often nothing. Sets `ended` when a stop string, or the one call, is complete."""
        self.output_tokens += 1
        if token.logprobs is not None:
            logprob = text_logprob(self._tokenizer, token.token_id, token.logprobs)
            self._held.append(_HeldLogprob(self._characters, logprob))
        is_below_min = self.output_tokens <= self._min_tokens
        if token.token_id in self._stop_token_ids:
            return []
        text = self._detokenizer.push(token.token_id)
        if self._calls is None:
            return self._release(text, is_below_min)
        said = self._delta("", self._take_logprobs(None)) + self._say(self._calls.parser.feed(text), is_below_min)
        if self._calls.parser.is_over and self.ended is None:
            self.ended = self._end("stop", None, None)
        return said

    def finish(self, reason: FinishReason, detail: FinishDetail | None) -> list[Said]:
        """The last text, and `ended` set. A stop string completed by the very last characters still counts."""
        text = self._detokenizer.flush()
        if self._calls is None:
            said = self._release(text, False)
        else:
            parser = self._calls.parser
            said = self._say(parser.feed(text) + parser.finish(was_cut=reason == "length"), False)
        if self.ended is None:
            rest = self._matcher.flush() if self._matcher else ""
            said = _joined(said, self._delta(rest, self._take_logprobs(None)))
            self.ended = self._end(reason, detail, None)
        return said

    def _say(self, found: list[pieces.Piece], is_below_min_tokens: bool) -> list[Said]:
        """What a parser found, until a stop string ends the choice."""
        assert self._calls is not None, "only a parser finds pieces"
        said: list[Said] = []
        for piece in found:
            if self.ended is not None:
                break
            if isinstance(piece, pieces.Content):
                said += self._release(piece.text, is_below_min_tokens)
            else:
                said += [*self._flushed_before_call(), self._calls.event(self._choice, piece)]
        return said

    def _flushed_before_call(self) -> list[Said]:
        """A stop string cannot go on behind a call."""
        if self._matcher is None:
            return []
        rest = self._matcher.flush()
        self._matcher = self._matcher.fresh()
        return self._delta(rest, ())

    def _release(self, text: str, is_below_min_tokens: bool) -> list[Said]:
        self._characters += len(text)
        matched: str | None = None
        if self._matcher is not None and not is_below_min_tokens:
            text, matched = self._matcher.push(text)
        self._released += len(text)
        logprobs = self._take_logprobs(self._released)
        if matched is not None:
            self.ended = self._end("stop", None, matched)
        return self._delta(text, logprobs)

    def _take_logprobs(self, released: int | None) -> tuple[TextLogprob, ...]:
        """Those whose text begins before `released` characters; all of them for None."""
        taken: list[TextLogprob] = []
        while self._held and (released is None or self._held[0].start < released):
            taken.append(self._held.popleft().logprob)
        return tuple(taken)

    def _delta(self, text: str, logprobs: tuple[TextLogprob, ...]) -> list[Said]:
        return [TextDelta(self._choice, text, logprobs)] if text or logprobs else []

    def _end(self, reason: FinishReason, detail: FinishDetail | None, matched: str | None) -> ChoiceEnded:
        calls_tools = reason == "stop" and self._calls is not None and self._calls.num_ended > 0
        ended_by: AnswerReason = "tool_calls" if calls_tools else reason
        return ChoiceEnded(self._choice, ended_by, detail, matched, self.output_tokens)


class CallReading:
    """The tool calls of one choice: its parser, and the ids and numbers of the calls."""

    def __init__(self, parser: ToolCallParser, shown_ids: frozenset[int], new_id: Callable[[], str]) -> None:
        """`shown_ids`: control tokens that the parser must see; `new_id` gives an id that nobody can guess."""
        self.parser = parser
        self.shown_ids = shown_ids
        self._new_id = new_id
        self._num_begun = 0
        self.num_ended = 0

    def event(self, choice: int, piece: pieces.CallBegun | pieces.CallArguments | pieces.CallEnded) -> CallEvent:
        match piece:
            case pieces.CallBegun():
                self._num_begun += 1
                return CallBegun(choice, self._num_begun - 1, self._new_id(), piece.name)
            case pieces.CallArguments():
                return CallArguments(choice, self._num_begun - 1, piece.text)
            case pieces.CallEnded():
                self.num_ended += 1
                return CallEnded(choice, self._num_begun - 1)


def _joined(said: list[Said], more: list[Said]) -> list[Said]:
    """`more` is one delta at most; it joins a delta before it."""
    match said, more:
        case [*before, TextDelta() as last], [TextDelta() as delta]:
            return [*before, TextDelta(last.choice, last.text + delta.text, last.logprobs + delta.logprobs)]
    return said + more


def text_logprob(tokenizer: Tokenizer, token_id: int, logprobs: TokenLogprobs) -> TextLogprob:
    """Token ids with the bytes they stand for; bytes that are no character show as U+FFFD in `text` only."""
    token_bytes = tokenizer.token_bytes(token_id)
    top = tuple((*_text_and_bytes(tokenizer, other), logprob) for other, logprob in logprobs.top)
    return TextLogprob(token_id, token_bytes.decode("utf-8", "replace"), token_bytes, logprobs.logprob, top)


def _text_and_bytes(tokenizer: Tokenizer, token_id: int) -> tuple[str, bytes]:
    token_bytes = tokenizer.token_bytes(token_id)
    return token_bytes.decode("utf-8", "replace"), token_bytes
