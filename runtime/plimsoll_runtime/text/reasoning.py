"""Reasoning told apart from the answer, while the text of one choice arrives in pieces.

Owns the formats of `--reasoning-parser` and where reasoning begins and ends. In: the text of a choice, after every
token. Out: `Part`s; put together they are the same for every cut. The rules: reasoning begins with the prompt, where
the template left its tag open there, or with the opening tag where nothing but white space, reasoning and complete
calls stands before it; the first closing tag ends it, and a later one is text like any other; text whose tag never
closes is reasoning to its end. Line ends next to the tags are layout. It knows no tokens of a prompt but their text.
Owns also the bound on reasoning, `ReasoningBudget`, which the engine obeys token by token.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from plimsoll_runtime.text.detokenizer import Detokenizer
from plimsoll_runtime.text.tokenizer import Tokenizer
from plimsoll_runtime.token_rules import TokenRule

TAIL_TOKENS: Final = 16
"""So many last tokens of a prompt are read: a tag with the line ends behind it."""
_SWITCHES: Final = ("enable_thinking", "thinking")
"""What the templates of Qwen and of DeepSeek call the switch that turns thinking off."""


@dataclass(frozen=True, slots=True)
class Tags:
    """`is_assumed`: an answer begins inside reasoning even where no opening tag stands in it or in its prompt."""

    opener: str = "<think>"
    closer: str = "</think>"
    is_assumed: bool = False


FORMATS: Final[Mapping[str, Tags]] = {"qwen3": Tags(), "deepseek_r1": Tags(is_assumed=True), "think": Tags()}


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of text, and which side of the border it is on."""

    kind: Literal["reasoning", "answer"]
    text: str


class ReasoningFormat:
    """The format of one model, by its name in `FORMATS`."""

    def __init__(self, name: str, tokenizer: Tokenizer) -> None:
        self.tags = FORMATS[name]
        self._tokenizer = tokenizer
        self.shown_ids = tokenizer.control_ids((self.tags.opener, self.tags.closer))
        """Marks that are control tokens in this model, and must be seen as text."""

    @property
    def closer_id(self) -> int | None:
        """The closing tag as a token of its own, where the model has one: what a budget ends reasoning with."""
        return self._tokenizer.token_id(self.tags.closer)

    def budget(
        self, prompt_ids: Sequence[int], template_arguments: Mapping[str, Any], most_tokens: int
    ) -> "ReasoningBudget":
        """The rule for one choice. The model must have a `closer_id`."""
        closer_id = self.closer_id
        assert closer_id is not None, "admission refuses budgets where reasoning cannot be ended"
        detokenizer = Detokenizer(self._tokenizer, self.shown_ids)
        splitter = self.splitter(prompt_ids, template_arguments)
        only_closer_V = np.zeros(self._tokenizer.num_tokens, dtype=np.bool_)
        only_closer_V[closer_id] = True
        return ReasoningBudget(splitter, detokenizer, only_closer_V, most_tokens)

    def free_before(
        self,
        form: TokenRule,
        prompt_ids: Sequence[int],
        template_arguments: Mapping[str, Any],
        end_ids: Collection[int],
    ) -> "FreeReasoning":
        """The rule for one choice whose answer is held to `form`; `end_ids` end answers."""
        return FreeReasoning(
            form,
            self.splitter(prompt_ids, template_arguments),
            Detokenizer(self._tokenizer, self.shown_ids),
            self._tokenizer.token_id(self.tags.opener),
            end_ids,
        )

    def splitter(self, prompt_ids: Sequence[int], template_arguments: Mapping[str, Any] | None) -> "ReasoningSplitter":
        """A splitter for one choice. `template_arguments` None: the prompt is no chat, and only its text counts."""
        tail = b"".join(self._tokenizer.token_bytes(token_id) for token_id in prompt_ids[-TAIL_TOKENS:])
        end = tail.decode(errors="replace").rstrip()
        is_open = end.endswith(self.tags.opener)
        if self.tags.is_assumed and template_arguments is not None:
            is_open = is_open or not (end.endswith(self.tags.closer) or _is_off(template_arguments))
        return ReasoningSplitter(self.tags, is_open=is_open)


def _is_off(template_arguments: Mapping[str, Any]) -> bool:
    return any(template_arguments.get(name) is False for name in _SWITCHES)


class ReasoningBudget:
    """At most so many tokens of reasoning, tags included: the last of them is the closing tag, whatever the model would
    write. A `TokenRule`."""

    def __init__(
        self,
        splitter: "ReasoningSplitter",
        detokenizer: Detokenizer,
        only_closer_V: npt.NDArray[np.bool_],
        most_tokens: int,
    ) -> None:
        self._splitter = splitter
        self._detokenizer = detokenizer
        self._only_closer_V = only_closer_V
        self._most_tokens = most_tokens
        self._num_tokens = 0

    def allowed(self) -> npt.NDArray[np.bool_] | None:
        is_last = self._splitter.is_open and self._num_tokens >= self._most_tokens - 1
        return self._only_closer_V if is_last else None

    def advance(self, token_id: int) -> None:
        deque(self._splitter.feed(self._detokenizer.push(token_id)), maxlen=0)
        self._num_tokens += self._splitter.is_open


class FreeReasoning:
    """A form for what comes after reasoning: until then anything may be written but the end. A `TokenRule`.

    An answer whose reasoning its prompt has not opened may begin with the opening tag, where that is one token.
    """

    def __init__(
        self,
        form: TokenRule,
        splitter: "ReasoningSplitter",
        detokenizer: Detokenizer,
        opener_id: int | None,
        end_ids: Collection[int],
    ) -> None:
        self._form = form
        self._splitter = splitter
        self._detokenizer = detokenizer
        self._opener_id = None if splitter.is_open else opener_id
        self._end_ids = list(end_ids)
        self._all_but_end_V: npt.NDArray[np.bool_] | None = None

    def allowed(self) -> npt.NDArray[np.bool_] | None:
        if self._splitter.is_open and self._all_but_end_V is not None:
            return self._all_but_end_V
        allowed_V = self._form.allowed()
        if allowed_V is None:
            return None
        if self._splitter.is_open:
            allowed_V = self._all_but_end_V = np.ones_like(allowed_V)
            allowed_V[self._end_ids] = False
        elif self._opener_id is not None:
            allowed_V = allowed_V.copy()
            allowed_V[self._opener_id] = True
        return allowed_V

    def advance(self, token_id: int) -> None:
        was_open = self._splitter.is_open or token_id == self._opener_id
        self._opener_id = None
        deque(self._splitter.feed(self._detokenizer.push(token_id)), maxlen=0)
        if not was_open:
            self._form.advance(token_id)


class ReasoningSplitter:
    """Made anew for each choice. `is_open`: the answer begins inside reasoning."""

    def __init__(self, tags: Tags, *, is_open: bool) -> None:
        self._tags = tags
        self.is_open = is_open
        self._text = ""
        self._is_first = True
        """Nothing was said yet on this side of the border, so line ends are layout and a tag may follow."""
        self._trims = is_open

    @property
    def is_undecided(self) -> bool:
        """Whether text is held back, to which side of the border it may still belong."""
        return not self.is_open and bool(self._text)

    def feed(self, text: str, is_after_call: Callable[[], bool] = lambda: False) -> Iterator[Part]:
        """The parts that this text completes. Each is to be read before the next is asked for: `is_after_call` says
        whether all that stands before is complete calls."""
        self._text += text
        while self._text:
            before = (self.is_open, len(self._text))
            yield from self._reasoning() if self.is_open else self._answer(is_after_call)
            if (self.is_open, len(self._text)) == before:
                return

    def finish(self) -> Iterator[Part]:
        """What was held back, at the end of the text."""
        rest, self._text = self._text, ""
        if rest:
            yield Part("reasoning" if self.is_open else "answer", rest)

    def _reasoning(self) -> Iterator[Part]:
        if self._is_first and not self._skip_opening():
            return
        at = self._text.find(self._tags.closer)
        if at >= 0:
            said, self._text = self._text[:at].rstrip("\n"), self._text[at + len(self._tags.closer) :]
            self._turn(is_open=False)
        else:
            keep = len(self._text) - _begun(self._text, self._tags.closer)
            said = self._text[:keep].rstrip("\n")
            self._text = self._text[len(said) :]
            self._is_first = self._is_first and not said
        if said:
            yield Part("reasoning", said)

    def _skip_opening(self) -> bool:
        """Drops line ends, and an opening tag that repeats the prompt's. Whether what follows is reasoning."""
        text = self._text.lstrip("\n")
        if text.startswith(self._tags.opener):
            text = text.removeprefix(self._tags.opener).lstrip("\n")
        self._text = text
        return bool(text) and not (self._tags.opener.startswith(text))

    def _answer(self, is_after_call: Callable[[], bool]) -> Iterator[Part]:
        if self._trims:
            self._text = self._text.lstrip("\n")
            self._trims = not self._text
        opener = self._tags.opener
        at = self._text.find(opener)
        end = at if at >= 0 else len(self._text) - _begun(self._text, opener)
        said = self._text[:end]
        if self._is_first and not said.strip():
            if at >= 0:
                self._begin_reasoning(at)
            return
        self._is_first = False
        if said:
            self._text = self._text[end:]
            yield Part("answer", said)
        elif at == 0 and is_after_call():
            self._begin_reasoning(at)
        elif at == 0:
            self._text = self._text[len(opener) :]
            yield Part("answer", opener)

    def _begin_reasoning(self, at: int) -> None:
        self._text = self._text[at + len(self._tags.opener) :]
        self._turn(is_open=True)

    def _turn(self, *, is_open: bool) -> None:
        self.is_open = is_open
        self._is_first = self._trims = True


def _begun(text: str, mark: str) -> int:
    """How much of `mark` the text ends with, as far as it is not whole."""
    longest = min(len(text), len(mark) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(mark[:length])), 0)
