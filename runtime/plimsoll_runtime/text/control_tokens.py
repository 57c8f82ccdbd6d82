"""Keeps control tokens that a client typed apart from those that the chat template writes.

Owns the mark: a character that no string of the request has, put after the first character of every typed control
token before the template runs. In: messages and template arguments. Out: the same with marks, and the mark (None
where nothing had to be marked, so that ordinary requests are rendered as they are). The tokenizer then drops the mark
after it has searched for control tokens: the typed text survives as ordinary tokens, joined to its neighbours as any
text is. Invariant: no string of a request, key or value, can become a control token.

Tokens that are matched in any text but have a part in the template, such as `<think>`, are marked too, except in
assistant messages, where templates look for them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_LONGEST_SIGN = 4
"""Tokens are found by their first few characters, which are few different ones, then looked up whole."""

_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
"""Unicode sets these aside for use inside a program: no text means anything by them."""


@dataclass(frozen=True, slots=True)
class MarkedChat:
    """`mark` None: nothing was typed that could be taken for a control token."""

    messages: Sequence[Mapping[str, Any]]
    arguments: Mapping[str, Any]
    mark: str | None


class ControlTokenGuard:
    """Made once per model."""

    def __init__(self, control: Iterable[str], template_only: Iterable[str]) -> None:
        """`control`: texts of control tokens; `template_only`: other added tokens that the template writes."""
        everywhere = frozenset(text for text in control if len(text) > 1)
        self._everywhere = _Finder(everywhere)
        self._outside_answers = _Finder(everywhere | {text for text in template_only if len(text) > 1})

    def mark(self, messages: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]) -> MarkedChat:
        """Mark what was typed. Copies only when there is something to mark."""
        found = any(self._finder(message).finds(_strings(message)) for message in messages)
        if not found and not self._outside_answers.finds(_strings(arguments)):
            return MarkedChat(messages, arguments, None)
        mark = _absent_character(_strings([messages, arguments]))
        marked = [_rewrite(message, self._finder(message), mark) for message in messages]
        return MarkedChat(marked, _rewrite(arguments, self._outside_answers, mark), mark)

    def _finder(self, message: Mapping[str, Any]) -> "_Finder":
        return self._everywhere if message.get("role") == "assistant" else self._outside_answers


class _Finder:
    """Where any of some texts begin, overlapping ones included."""

    def __init__(self, texts: frozenset[str]) -> None:
        self._texts = texts
        self._lengths = sorted({len(text) for text in texts})
        signs = sorted({text[:_LONGEST_SIGN] for text in texts})
        # The look-ahead finds beginnings that overlap; (?!) never matches.
        self._sign = re.compile(f"(?={'|'.join(map(re.escape, signs)) or '(?!)'})")

    def finds(self, strings: Iterable[str]) -> bool:
        return any(True for text in strings for _ in self._starts(text))

    def marked(self, text: str, mark: str) -> str:
        """`text` with the mark after the first character of each of the texts in it."""
        pieces, done = [], 0
        for start in self._starts(text):
            pieces.append(text[done : start + 1])
            done = start + 1
        return mark.join([*pieces, text[done:]])

    def _starts(self, text: str) -> Iterator[int]:
        for sign in self._sign.finditer(text):
            start = sign.start()
            if any(text[start : start + length] in self._texts for length in self._lengths):
                yield start


def _strings(value: Any) -> Iterator[str]:
    """Every string in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _strings(item)


def _rewrite(value: Any, finder: _Finder, mark: str) -> Any:
    if isinstance(value, str):
        return finder.marked(value, mark)
    if isinstance(value, Mapping):
        return {_rewrite(key, finder, mark): _rewrite(item, finder, mark) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_rewrite(item, finder, mark) for item in value]
    return value


def _absent_character(strings: Iterable[str]) -> str:
    """A noncharacter that no string has. A client that sends all 32 loses the first of them, and nothing else."""
    candidates = dict.fromkeys(_NONCHARACTERS)
    for text in strings:
        for character in [candidate for candidate in candidates if candidate in text]:
            del candidates[character]
    return next(iter(candidates), _NONCHARACTERS[0])
