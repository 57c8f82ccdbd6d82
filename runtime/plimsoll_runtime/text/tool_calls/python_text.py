"""Python literals as a model writes them in a call, turned into JSON character by character.

Owns which literals there are: strings, numbers, True, False, None, lists, tuples and dictionaries, nested. A number
stays as it was written where JSON has it so; everything else of Python (names, sums, calls, f-strings) is malformed.
In: a Reader. Out: JSON to `say`, which is at every moment the beginning of valid JSON. Source: "Lexical analysis" in
Python's language reference.
"""

import json
from collections.abc import Callable
from typing import Final

from plimsoll_runtime.text.tool_calls.json_text import MAX_DEPTH, whole_value
from plimsoll_runtime.text.tool_calls.reader import EndOfTextError, MalformedError, Reader, Steps

_WORDS: Final = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_CLOSERS: Final = {"[": "]", "(": ")"}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\n": ""}
_CODES: Final = {"x": 2, "u": 4, "U": 8}
_HEX: Final = "0123456789abcdefABCDEF"
_ENDS_A_WORD: Final = frozenset(" \t\r\n,)]}:")


class PythonText:
    """Reads literals from `reader` and says them as JSON."""

    def __init__(self, reader: Reader, say: Callable[[str], None]) -> None:
        self._reader = reader
        self._say = say

    def value(self, depth: int = 0) -> Steps[None]:
        if depth > MAX_DEPTH:
            raise MalformedError
        character = yield from self._reader.peek()
        if character == "{":
            yield from self._dictionary(depth)
        elif character in _CLOSERS:
            yield from self._list(_CLOSERS[character], depth)
        elif character in ('"', "'"):
            yield from self.string()
        else:
            yield from self._word()

    def _word(self) -> Steps[None]:
        """A number or a word; it is complete with the character after it."""
        word = yield from self._reader.take_while(lambda character: character not in _ENDS_A_WORD)
        number = word.removeprefix("+")
        if word in _WORDS:
            self._say(_WORDS[word])
        elif number[:1] in "-0123456789" and number:
            self._say(whole_value(number))
        else:
            raise MalformedError

    def _list(self, closer: str, depth: int) -> Steps[None]:
        yield from self._reader.take()
        self._say("[")
        comma = ""
        while (yield from self._has_more(closer)):
            self._say(comma)
            comma = ", "
            yield from self.value(depth + 1)
            yield from self._comma_or(closer)
        self._say("]")

    def _dictionary(self, depth: int) -> Steps[None]:
        yield from self._reader.take()
        self._say("{")
        comma = ""
        while (yield from self._has_more("}")):
            self._say(comma)
            comma = ", "
            yield from self.string()
            yield from self._reader.skip()
            yield from self._reader.expect(":")
            yield from self._reader.skip()
            self._say(": ")
            yield from self.value(depth + 1)
            yield from self._comma_or("}")
        self._say("}")

    def _has_more(self, closer: str) -> Steps[bool]:
        """Whether another item stands here; otherwise takes the closer."""
        if not (yield from self._reader.skip()):
            raise EndOfTextError
        return (yield from self._reader.take_if((closer,))) is None

    def _comma_or(self, closer: str) -> Steps[None]:
        """What follows an item: a comma, which is taken, or the closer, which is not."""
        if (yield from self._reader.skip()) != closer:
            yield from self._reader.expect(",")

    def string(self) -> Steps[None]:
        """A string in single, double or triple quotes."""
        quote = yield from self._reader.require(('"""', "'''", '"', "'"))
        self._say('"')
        while (yield from self._reader.take_if((quote,))) is None:
            character = yield from self._reader.take()
            if character == "\\":
                character = yield from self._escape()
            elif character == "\n" and len(quote) == 1:
                raise MalformedError
            self._say(json.dumps(character, ensure_ascii=False)[1:-1])
        self._say('"')

    def _escape(self) -> Steps[str]:
        """What an escape means; a backslash before any other character is a backslash."""
        character = yield from self._reader.take()
        if character in ("\\", "'", '"'):
            return character
        if character in _ESCAPES:
            return _ESCAPES[character]
        if character not in _CODES:
            return "\\" + character
        digits = ""
        for _ in range(_CODES[character]):
            digits += yield from self._reader.take_one_of(_HEX)
        code = int(digits, 16)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise MalformedError
        return chr(code)
