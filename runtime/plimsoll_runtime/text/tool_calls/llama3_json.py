"""Llama 3.1 and 3.2: `{"name": ..., "parameters": {...}}` as the whole answer, or behind `<|python_tag|>`.

Several calls stand one after another, after a semicolon or a comma, or in a list. Where no tag says that an object is a
call, its name must be that of a tool that was offered: otherwise it is an answer in JSON. Source: Meta's "Llama 3.1,
JSON based tool calling", and the chat template of Llama-3.1-8B-Instruct.
"""

from plimsoll_runtime.text.tool_calls.json_calls import JsonCalls
from plimsoll_runtime.text.tool_calls.parser import Tools
from plimsoll_runtime.text.tool_calls.reader import Reader, Steps
from plimsoll_runtime.text.tool_calls.writer import Writer

_TAG = "<|python_tag|>"


class Llama3Json:
    """The grammar."""

    openers: tuple[str, ...] = (_TAG,)
    first_openers: tuple[str, ...] = ("{", "[")
    closers: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()

    def __init__(self, reader: Reader, writer: Writer, tools: Tools) -> None:
        self._reader = reader
        self._tagged = JsonCalls(reader, writer)
        self._bare = JsonCalls(reader, writer, known=tools)

    def read(self, opener: str) -> Steps[bool]:
        calls = self._tagged if opener == _TAG else self._bare
        if opener != _TAG:
            self._reader.rewind()
        yield from calls.objects()
        while (yield from self._reader.skip()) in (";", ","):
            yield from self._reader.take()
            yield from calls.objects()
        self._reader.rewind()
        return False
