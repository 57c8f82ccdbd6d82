"""Any model that writes calls as JSON objects with a name and arguments (or parameters), bare or in a fence.

An object is a call where it begins the answer or a line, alone or in a list, and its name is that of a tool that was
offered; every other JSON is content. Nothing else says that it is a call, so an unknown name cannot.
"""

from plimsoll_runtime.text.tool_calls.json_calls import JsonCalls
from plimsoll_runtime.text.tool_calls.parser import Tools
from plimsoll_runtime.text.tool_calls.reader import Reader, Steps
from plimsoll_runtime.text.tool_calls.writer import Writer

_FENCES = ("```json\n", "```\n")
_BRACKETS = ("{", "[")


class GenericJson:
    """The grammar."""

    openers: tuple[str, ...] = tuple(f"\n{begin}" for begin in (*_FENCES, *_BRACKETS))
    first_openers: tuple[str, ...] = (*_FENCES, *_BRACKETS)
    closers: tuple[str, ...] = ("```",)
    marks: tuple[str, ...] = ()

    def __init__(self, reader: Reader, writer: Writer, tools: Tools) -> None:
        self._reader = reader
        self._calls = JsonCalls(reader, writer, known=tools)

    def read(self, opener: str) -> Steps[bool]:
        is_fenced = opener.endswith(_FENCES)
        if not is_fenced:
            self._reader.rewind()
        yield from self._calls.objects()
        if not is_fenced:
            return False
        yield from self._reader.skip()
        return (yield from self._reader.take_if(self.closers)) is None
