"""DeepSeek V3, R1 and V3.1: calls between marks of their own, whose names are written before the arguments.

    V3, R1: <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME
            ```json
            {...}
            ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
    V3.1:   <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜><｜tool▁calls▁end｜>

The outer marks may be missing. Source: the chat templates of the three models.
"""

from typing import Final

from plimsoll_runtime.text.tool_calls.json_calls import read_named_call
from plimsoll_runtime.text.tool_calls.parser import Tools
from plimsoll_runtime.text.tool_calls.reader import MalformedError, Reader, Steps
from plimsoll_runtime.text.tool_calls.writer import Writer

_ALL: Final = "<｜tool▁calls▁begin｜>"
_ONE: Final = "<｜tool▁call▁begin｜>"
_NAMED: Final = "<｜tool▁sep｜>"
_END_OF_ONE: Final = "<｜tool▁call▁end｜>"
_END_OF_ALL: Final = "<｜tool▁calls▁end｜>"


class Deepseek:
    """The grammar."""

    openers: tuple[str, ...] = (_ALL, _ONE)
    first_openers: tuple[str, ...] = ()
    closers: tuple[str, ...] = (_END_OF_ONE, _END_OF_ALL)
    marks: tuple[str, ...] = (_NAMED,)

    def __init__(self, reader: Reader, writer: Writer, tools: Tools) -> None:
        self._reader = reader
        self._writer = writer

    def read(self, opener: str) -> Steps[bool]:
        if opener == _ALL:
            yield from self._reader.skip()
            yield from self._reader.require((_ONE,))
        while True:
            yield from self._call()
            yield from self._reader.skip()
            yield from self._reader.take_if((_END_OF_ONE,))
            yield from self._reader.skip()
            found = yield from self._reader.take_if((_ONE, _END_OF_ALL))
            if found != _ONE:
                return found is None

    def _call(self) -> Steps[None]:
        name = yield from self._line_before("<")
        yield from self._reader.require((_NAMED,))
        if (yield from self._reader.skip()) not in ("{", "`"):
            name = yield from self._line_before("\n")
            yield from self._reader.skip()
        fence = yield from self._reader.take_if(("```",))
        yield from self._reader.take_if(("json",))
        yield from self._reader.skip()
        yield from read_named_call(self._reader, self._writer, name)
        if fence is not None:
            yield from self._reader.skip()
            yield from self._reader.take_if(("```",))

    def _line_before(self, end: str) -> Steps[str]:
        characters: list[str] = []
        while (character := (yield from self._reader.peek())) != end:
            if character in ("<", "\n"):
                raise MalformedError
            characters.append((yield from self._reader.take()))
        if not (line := "".join(characters).strip()):
            raise MalformedError
        return line
