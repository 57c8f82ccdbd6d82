"""Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, once per call.

More than one object between the tags, a list of them, stray brackets before the closing tag, and a missing closing
tag are read too. Source: the chat templates of NousResearch/Hermes-2-Pro and Qwen2.5.
"""

from plimsoll_runtime.text.tool_calls.json_calls import JsonCalls
from plimsoll_runtime.text.tool_calls.parser import Tools
from plimsoll_runtime.text.tool_calls.reader import SPACE, Reader, Steps
from plimsoll_runtime.text.tool_calls.writer import Writer

_STRAY = SPACE | frozenset("]}")


class Hermes:
    """The grammar."""

    openers: tuple[str, ...] = ("<tool_call>",)
    first_openers: tuple[str, ...] = ()
    closers: tuple[str, ...] = ("</tool_call>",)
    marks: tuple[str, ...] = ()

    def __init__(self, reader: Reader, writer: Writer, tools: Tools) -> None:
        self._reader = reader
        self._calls = JsonCalls(reader, writer)

    def read(self, opener: str) -> Steps[bool]:
        yield from self._calls.objects()
        yield from self._reader.skip(_STRAY)
        return (yield from self._reader.take_if(self.closers)) is None
