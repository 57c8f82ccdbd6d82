"""JSON as a model writes it, read strictly and passed on character by character.

Owns the grammar of RFC 8259, so that what is passed on is at every moment the beginning of valid JSON, and its
numbers, escapes and spaces are the model's own. In: a Reader. Out: characters to `say`; MalformedError for the first
one that is wrong, or for what is nested deeper than a request may be in which it comes back.
"""

import json
from collections.abc import Callable
from typing import Final

from plimsoll_runtime.text.tool_calls.reader import SPACE, EndOfTextError, MalformedError, Reader, Steps

MAX_DEPTH: Final = 100
"""Levels of lists and objects in the arguments of a call."""

_SURROGATES: Final = range(0xD800, 0xE000)
_SECOND_SURROGATE: Final = 0xDC00
_DIGITS: Final = frozenset("0123456789")
_LITERALS: Final = {"t": "true", "f": "false", "n": "null"}
_Say = Callable[[str], None]


class JsonText:
    """Reads values from `reader`; `say` hears every character that belongs to them."""

    def __init__(self, reader: Reader, say: _Say) -> None:
        self._reader = reader
        self._say = say

    def value(self, depth: int = 0) -> Steps[None]:
        if depth > MAX_DEPTH:
            raise MalformedError
        character = yield from self._reader.peek()
        if character == "{":
            yield from self.object(depth)
        elif character == "[":
            yield from self._list(depth)
        elif character == '"':
            yield from self.string()
        elif character in _LITERALS:
            for expected in _LITERALS[character]:
                yield from self._one_of(expected)
        else:
            yield from self._number()

    def object(self, depth: int = 0) -> Steps[None]:
        yield from self._one_of("{")
        if (yield from self._space()) == "}":
            yield from self._one_of("}")
            return
        while True:
            yield from self.string()
            yield from self._space()
            yield from self._one_of(":")
            yield from self._space()
            yield from self.value(depth + 1)
            yield from self._space()
            if (yield from self._one_of(",}")) == "}":
                return
            yield from self._space()

    def string(self) -> Steps[None]:
        yield from self._one_of('"')
        while True:
            character = yield from self._reader.peek()
            if character and character < " ":
                raise MalformedError
            self._say((yield from self._reader.take()))
            if character == '"':
                return
            if character == "\\" and (yield from self._one_of('"\\/bfnrtu')) == "u":
                yield from self._code()

    def _code(self) -> Steps[None]:
        """The digits of an escape; a surrogate must be the first of a pair, since alone it is no character."""
        if (first := (yield from self._digits_of_code())) not in _SURROGATES:
            return
        yield from self._one_of("\\")
        yield from self._one_of("u")
        second = yield from self._digits_of_code()
        if first >= _SECOND_SURROGATE or second not in _SURROGATES or second < _SECOND_SURROGATE:
            raise MalformedError

    def _digits_of_code(self) -> Steps[int]:
        code = 0
        for _ in range(4):
            code = code * 16 + int((yield from self._one_of("0123456789abcdefABCDEF")), 16)
        return code

    def _list(self, depth: int) -> Steps[None]:
        yield from self._one_of("[")
        if (yield from self._space()) == "]":
            yield from self._one_of("]")
            return
        while True:
            yield from self.value(depth + 1)
            yield from self._space()
            if (yield from self._one_of(",]")) == "]":
                return
            yield from self._space()

    def _number(self) -> Steps[None]:
        if (yield from self._reader.peek()) == "-":
            yield from self._one_of("-")
        if (yield from self._one_of("0123456789")) != "0":
            yield from self._digits()
        if (yield from self._reader.peek()) == ".":
            yield from self._one_of(".")
            yield from self._one_of("0123456789")
            yield from self._digits()
        if (yield from self._reader.peek()) in ("e", "E"):
            yield from self._one_of("eE")
            if (yield from self._reader.peek()) in ("+", "-"):
                yield from self._one_of("+-")
            yield from self._one_of("0123456789")
            yield from self._digits()

    def _digits(self) -> Steps[None]:
        yield from self._run(_DIGITS)

    def _space(self) -> Steps[str]:
        """Says the white space here; returns the character after it."""
        return (yield from self._run(SPACE))

    def _run(self, characters: frozenset[str]) -> Steps[str]:
        while (character := (yield from self._reader.peek())) and character in characters:
            self._say((yield from self._reader.take()))
        return character

    def _one_of(self, characters: str) -> Steps[str]:
        character = yield from self._reader.take_one_of(characters)
        self._say(character)
        return character


def whole_object(text: str) -> str:
    """`text` itself, if it is one JSON object and nothing else; MalformedError otherwise."""
    if not text.lstrip().startswith("{"):
        raise MalformedError
    return whole_value(text)


def whole_value(text: str) -> str:
    """`text` itself, if it is one JSON value and nothing else; MalformedError otherwise."""
    reader = Reader()
    reader.feed(text)
    reader.end()
    try:
        for _ in _alone(reader):
            raise AssertionError("a text that has ended is never waited for")
    except EndOfTextError:
        raise MalformedError from None
    return text


def _alone(reader: Reader) -> Steps[None]:
    yield from reader.skip()
    yield from JsonText(reader, lambda _: None).value()
    if (yield from reader.skip()):
        raise MalformedError


def read_string(reader: Reader) -> Steps[str]:
    """What a JSON string means."""
    characters: list[str] = []
    yield from JsonText(reader, characters.append).string()
    return str(json.loads("".join(characters)))
