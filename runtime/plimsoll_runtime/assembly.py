"""From sampled tokens to the text a client may see: one choice's detokenizer, parser, stop matcher and counts.

Owns the order of things: a token is counted, becomes bytes, becomes characters, is told apart from reasoning where the
server reads it, then from tool calls where there are tools, is held back while it may be part of a stop string, and
only then is text. In: engine tokens of one choice. Out: what is said of it, and one `ChoiceEnded`. Invariants: every
sampled id is counted, end tokens included; the text of an end token is never shown; nothing of a matched stop string or
after it leaves, and no stop string is looked for inside reasoning or a call; log probabilities leave with the text they
belong to, or, where there are tools, as they come; those of reasoning do not leave.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

from plimsoll_runtime.events import (
    AnswerReason,
    CallArguments,
    CallBegun,
    CallEnded,
    CallEvent,
    ChoiceEnded,
    FinishDetail,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TextLogprob,
    Token,
    TokenLogprobs,
)
from plimsoll_runtime.text.detokenizer import Detokenizer
from plimsoll_runtime.text.reasoning import Part, ReasoningSplitter
from plimsoll_runtime.text.stop_strings import StopMatcher
from plimsoll_runtime.text.tokenizer import Tokenizer
from plimsoll_runtime.text.tool_calls import pieces
from plimsoll_runtime.text.tool_calls.parser import ToolCallParser

Said = TextDelta | ReasoningDelta | CallEvent


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
        reasoning: "ReasoningReading | None" = None,
    ) -> None:
        """`matcher` is this choice's own; None: no stop strings. `calls` and `reasoning` too; None: not looked for."""
        self._choice = choice
        self._tokenizer = tokenizer
        shown = (reading.shown_ids for reading in (calls, reasoning) if reading is not None)
        self._detokenizer = Detokenizer(tokenizer, frozenset[int]().union(*shown))
        self._calls = calls
        self._reasoning = reasoning
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
        if self._reasoning is None:
            return self._answer(text, is_below_min)
        said = self._split(self._reasoning.feed(text, self._is_after_call), is_below_min)
        if self._reasoning.takes_token():
            self._held.clear()
        return said

    def finish(self, reason: FinishReason, detail: FinishDetail | None) -> list[Said]:
        """The last text, and `ended` set. A stop string completed by the very last characters still counts."""
        text = self._detokenizer.flush()
        if self._reasoning is not None:
            said = self._split(self._reasoning.finish(text, self._is_after_call), False)
        else:
            said = self._answer(text, False) if text else []
        if self.ended is None and self._calls is not None:
            said += self._say(self._calls.parser.finish(was_cut=reason == "length"), False)
        if self.ended is None:
            rest = self._matcher.flush() if self._matcher else ""
            said = _joined(said, self._delta(rest, self._take_logprobs(None)))
            self.ended = self._end(reason, detail, None)
        return said

    def _split(self, parts: Iterator[Part], is_below_min_tokens: bool) -> list[Said]:
        """What stands on both sides of the border, until a stop string, or the one call, ends the choice."""
        said: list[Said] = []
        for part in parts:
            if self.ended is not None:
                break
            if part.kind == "answer":
                said += self._answer(part.text, is_below_min_tokens)
            else:
                said += [*self._flushed_matcher(), ReasoningDelta(self._choice, part.text)]
        return said

    def _is_after_call(self) -> bool:
        return self._calls is not None and self._calls.parser.is_after_call

    def _answer(self, text: str, is_below_min_tokens: bool) -> list[Said]:
        """What is not reasoning: text, and calls where there are tools."""
        if self._calls is None:
            return self._release(text, is_below_min_tokens)
        said = self._delta("", self._take_logprobs(None))
        said += self._say(self._calls.parser.feed(text), is_below_min_tokens)
        if self._calls.parser.is_over and self.ended is None:
            self.ended = self._end("stop", None, None)
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
                said += [*self._flushed_matcher(), self._calls.event(self._choice, piece)]
        return said

    def _flushed_matcher(self) -> list[Said]:
        """A stop string cannot go on behind a call, or behind reasoning."""
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
        reasoning_tokens = 0 if self._reasoning is None else self._reasoning.num_tokens
        return ChoiceEnded(self._choice, ended_by, detail, matched, self.output_tokens, reasoning_tokens)


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


class ReasoningReading:
    """The reasoning of one choice: where it stands, and how many tokens it took, its tags included.

    `is_shown`: it is counted, and stays in the text.
    """

    def __init__(self, splitter: ReasoningSplitter, shown_ids: frozenset[int], *, is_shown: bool) -> None:
        self._splitter = splitter
        self._was_open = splitter.is_open
        self._num_undecided = 0
        self.shown_ids = frozenset[int]() if is_shown else shown_ids
        self.is_shown = is_shown
        self.num_tokens = 0

    def feed(self, text: str, is_after_call: Callable[[], bool]) -> Iterator[Part]:
        return self._seen(self._splitter.feed(text, is_after_call), text)

    def finish(self, text: str, is_after_call: Callable[[], bool]) -> Iterator[Part]:
        parts = chain(self._splitter.feed(text, is_after_call), self._splitter.finish())
        return self._seen(parts, text)

    def _seen(self, parts: Iterator[Part], text: str) -> Iterator[Part]:
        if not self.is_shown:
            yield from parts
            return
        deque(parts, maxlen=0)
        if text:
            yield Part("answer", text)

    def takes_token(self) -> bool:
        """Counts a token, after its parts were read. Whether it belongs to reasoning that is told apart."""
        was_open, self._was_open = self._was_open, self._splitter.is_open
        if not was_open and not self._splitter.is_open:
            self._num_undecided = self._num_undecided + 1 if self._splitter.is_undecided else 0
            return False
        self.num_tokens += 1 + self._num_undecided
        self._num_undecided = 0
        return not self.is_shown


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
