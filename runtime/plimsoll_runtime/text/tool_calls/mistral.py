"""Mistral: `[TOOL_CALLS]` before a list of objects, or before each `NAME[ARGS]{...}`.

Tokenizers up to version 7 write the list, those from version 11 on the second form, with `[CALL_ID]ID` between name and
arguments in some; the marks are control tokens. The model's own call ids are not used. Source: mistral-common's
tokenizers v3 to v13, and the chat templates of Mistral-7B-Instruct-v0.3 and Mistral-Small-3.2.
"""

from plimsoll_runtime.text.tool_calls.json_calls import JsonCalls, read_named_call
from plimsoll_runtime.text.tool_calls.parser import Tools
from plimsoll_runtime.text.tool_calls.reader import SPACE, MalformedError, Reader, Steps
from plimsoll_runtime.text.tool_calls.writer import Writer

_CALLS, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_NOT_IN_A_NAME = SPACE | frozenset("[]{}\"'<>")


class Mistral:
    """The grammar."""

    openers: tuple[str, ...] = (_CALLS,)
    first_openers: tuple[str, ...] = ()
    closers: tuple[str, ...] = ()
    marks: tuple[str, ...] = (_ID, _ARGUMENTS)

    def __init__(self, reader: Reader, writer: Writer, tools: Tools) -> None:
        self._reader = reader
        self._writer = writer
        self._calls = JsonCalls(reader, writer)

    def read(self, opener: str) -> Steps[bool]:
        if (yield from self._reader.skip()) in ("[", "{"):
            yield from self._calls.objects()
        else:
            yield from self._named()
        return False

    def _named(self) -> Steps[None]:
        name = yield from self._name()
        if (yield from self._reader.take_if((_ID,))) is not None:
            yield from self._name()
        yield from self._reader.take_if((_ARGUMENTS,))
        yield from self._reader.skip()
        yield from read_named_call(self._reader, self._writer, name)

    def _name(self) -> Steps[str]:
        """A word, and the white space behind it."""
        name = yield from self._reader.take_while(lambda character: character not in _NOT_IN_A_NAME)
        if not name:
            raise MalformedError
        yield from self._reader.skip()
        return name
