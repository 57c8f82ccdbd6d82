"""Qwen3-Coder: XML-like calls whose values are bare text.

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

The tool's schema says what a value is (typed_values.py); one line end on each side of it belongs to the marks. The
outer tag may be missing, and a value whose closing tag is missing ends at the next tag. Text values are passed on
while they are written. Source: the chat template of Qwen3-Coder-30B-A3B-Instruct.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from plimsoll_runtime.text.tool_calls.parser import Tools
from plimsoll_runtime.text.tool_calls.reader import MalformedError, Reader, Steps
from plimsoll_runtime.text.tool_calls.typed_values import STRING, json_value, parameter_types
from plimsoll_runtime.text.tool_calls.writer import Writer

_FUNCTION: Final = "<function="
_PARAMETER: Final = "<parameter="
_END_OF_FUNCTION: Final = "</function>"
_END_OF_VALUE: Final = "</parameter>"
_AFTER_VALUE: Final = tuple(
    space + mark for mark in (_END_OF_VALUE, _PARAMETER, _END_OF_FUNCTION) for space in ("\n", "")
)


class Qwen3Coder:
    """The grammar."""

    openers: tuple[str, ...] = ("<tool_call>", _FUNCTION)
    first_openers: tuple[str, ...] = ()
    closers: tuple[str, ...] = ("</tool_call>",)
    marks: tuple[str, ...] = ()

    def __init__(self, reader: Reader, writer: Writer, tools: Tools) -> None:
        self._reader = reader
        self._writer = writer
        self._tools = tools

    def read(self, opener: str) -> Steps[bool]:
        if opener != _FUNCTION:
            yield from self._reader.skip()
            yield from self._reader.expect(_FUNCTION)
        while True:
            yield from self._function()
            yield from self._reader.skip()
            if (yield from self._reader.take_if(self.closers)) is not None:
                return False
            if (yield from self._reader.take_if((_FUNCTION,))) is None:
                return opener != _FUNCTION

    def _function(self) -> Steps[None]:
        name = yield from self._name()
        call = _Call(self._writer, name)
        found: str | None = None
        while True:
            if found is None:
                yield from self._reader.skip()
                found = yield from self._reader.require((_PARAMETER, _END_OF_FUNCTION))
            if found == _END_OF_FUNCTION:
                call.end()
                return
            found = yield from self._parameter(call, self._tools.get(name, {}))

    def _name(self) -> Steps[str]:
        characters: list[str] = []
        while (character := (yield from self._reader.take())) != ">":
            if character in "<\n":
                raise MalformedError
            characters.append(character)
        name = "".join(characters).strip()
        if not name:
            raise MalformedError
        return name

    def _parameter(self, call: "_Call", parameters: Mapping[str, Any]) -> Steps[str | None]:
        """One parameter. Returns the mark that was taken where the next one stands in place of the closing tag."""
        key = yield from self._name()
        types = parameter_types(parameters, key)
        call.key(key)
        yield from self._reader.take_if(("\n",))
        text: list[str] = []
        say = call.text if types == STRING else text.append
        while (mark := (yield from self._reader.take_if(_AFTER_VALUE))) is None:
            say((yield from self._reader.take()))
        call.end_value(None if types == STRING else json_value("".join(text), types))
        return None if mark.lstrip() == _END_OF_VALUE else mark.lstrip()


class _Call:
    """A JSON object that grows by keys and values."""

    def __init__(self, writer: Writer, name: str) -> None:
        self._writer = writer
        self._before_key = "{"
        self._is_in_text = False
        writer.begin(name)

    def key(self, key: str) -> None:
        self._writer.arguments(f"{self._before_key}{json.dumps(key, ensure_ascii=False)}: ")
        self._before_key = ", "

    def text(self, text: str) -> None:
        """More of a value that is a string."""
        self._open_text()
        self._writer.arguments(json.dumps(text, ensure_ascii=False)[1:-1])

    def end_value(self, value: str | None) -> None:
        """`value` as JSON; None for the end of a string."""
        if value is None:
            self._open_text()
            self._is_in_text = False
            value = '"'
        self._writer.arguments(value)

    def _open_text(self) -> None:
        if not self._is_in_text:
            self._is_in_text = True
            self._writer.arguments('"')

    def end(self) -> None:
        self._writer.arguments("{}" if self._before_key == "{" else "}")
        self._writer.end()
