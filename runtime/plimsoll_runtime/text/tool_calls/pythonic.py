"""Pythonic calls: `[get_weather(city="Paris", days=3), now()]` as the whole answer, or between tags of Llama 4.

Arguments are Python literals and must be named; what they are in JSON says python_text.py. Where no tag says that a
list is one of calls, each name must be that of a tool that was offered. Source: Meta's "Llama 3.2" and "Llama 4" prompt
formats.
"""

import json

from plimsoll_runtime.text.tool_calls.parser import Tools
from plimsoll_runtime.text.tool_calls.python_text import PythonText
from plimsoll_runtime.text.tool_calls.reader import MalformedError, Reader, Steps
from plimsoll_runtime.text.tool_calls.writer import Writer

_TAG = "<|python_start|>"
_END_OF_TAG = "<|python_end|>"


class Pythonic:
    """The grammar."""

    openers: tuple[str, ...] = (_TAG,)
    first_openers: tuple[str, ...] = ("[",)
    closers: tuple[str, ...] = (_END_OF_TAG,)
    marks: tuple[str, ...] = ()

    def __init__(self, reader: Reader, writer: Writer, tools: Tools) -> None:
        self._reader = reader
        self._writer = writer
        self._tools = tools

    def read(self, opener: str) -> Steps[bool]:
        is_tagged = opener == _TAG
        if is_tagged:
            yield from self._reader.skip()
            yield from self._reader.expect("[")
        yield from self._reader.skip()
        while True:
            yield from self._call(is_tagged)
            yield from self._reader.skip()
            if (yield from self._reader.take_one_of(",]")) == "]":
                break
            yield from self._reader.skip()
        yield from self._reader.skip()
        closed = yield from self._reader.take_if(self.closers)
        return is_tagged and closed is None

    def _call(self, is_tagged: bool) -> Steps[None]:
        name = yield from self._name()
        if not (is_tagged or name in self._tools):
            raise MalformedError
        yield from self._reader.expect("(")
        if (yield from self._reader.skip()) == ")":
            self._writer.begin(name)
            self._writer.arguments("{")
        else:
            yield from self._argument(name)
        while (yield from self._reader.skip()) != ")":
            yield from self._argument(None)
        yield from self._reader.take()
        self._writer.arguments("}")
        self._writer.end()

    def _argument(self, begins: str | None) -> Steps[None]:
        """One named argument and the comma behind it; with the first, whose name is right, the call `begins`."""
        key = yield from self._name()
        yield from self._reader.skip()
        yield from self._reader.expect("=")
        yield from self._reader.skip()
        if begins is not None:
            self._writer.begin(begins)
        before = ", " if begins is None else "{"
        self._writer.arguments(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
        yield from PythonText(self._reader, self._writer.arguments).value()
        if (yield from self._reader.skip()) != ")":
            yield from self._reader.expect(",")

    def _name(self) -> Steps[str]:
        """A name; those of tools may have dots and hyphens."""
        name = yield from self._reader.take_while(lambda character: character.isalnum() or character in "_.-")
        if not name:
            raise MalformedError
        return name
