"""Calls that are JSON objects with a name and arguments, in whatever marks a format puts around them.

Owns how such an object is read: keys in any order, arguments as an object that is passed on while it is written, as a
string that holds one, as null, or missing (a tool without parameters). In: a Reader. Out: calls to a Writer;
MalformedError where the object is no call.
"""

from collections.abc import Callable, Container
from typing import Final

from plimsoll_runtime.text.tool_calls.json_text import JsonText, read_string, whole_object
from plimsoll_runtime.text.tool_calls.reader import MalformedError, Reader, Steps
from plimsoll_runtime.text.tool_calls.writer import Writer

NO_ARGUMENTS: Final = "{}"
_ARGUMENTS: Final = ("arguments", "parameters")
_BESIDE: Final = ("name", "type", "id", *_ARGUMENTS)
"""All keys of a bare call: JSON with any other key is an answer, known as one as soon as its key is read."""


class JsonCalls:
    """`known`: only objects that name one of these are calls; None where marks already said that it is one."""

    def __init__(self, reader: Reader, writer: Writer, known: Container[str] | None = None) -> None:
        self._reader = reader
        self._writer = writer
        self._known = known

    def objects(self) -> Steps[None]:
        """One call or more, one after another or in a list; not the white space behind them."""
        first = yield from self._reader.skip()
        while True:
            yield from self._list() if first == "[" else self.object()
            self._reader.commit()
            first = yield from self._reader.skip()
            if first not in ("{", "["):
                self._reader.rewind()
                return

    def _list(self) -> Steps[None]:
        yield from self._reader.expect("[")
        yield from self._reader.skip()
        while True:
            yield from self.object()
            yield from self._reader.skip()
            if (yield from self._reader.take_one_of(",]")) == "]":
                return
            yield from self._reader.skip()

    def object(self) -> Steps[None]:
        """One call."""
        yield from self._reader.expect("{")
        call = _Call(self._writer, self._known)
        if (yield from self._reader.skip()) == "}":
            raise MalformedError
        while True:
            yield from self._member(call)
            yield from self._reader.skip()
            if (yield from self._reader.take_one_of(",}")) == "}":
                break
            yield from self._reader.skip()
        call.close()

    def _member(self, call: "_Call") -> Steps[None]:
        key = yield from read_string(self._reader)
        if self._known is not None and key not in _BESIDE:
            raise MalformedError
        yield from self._reader.skip()
        yield from self._reader.expect(":")
        yield from self._reader.skip()
        if key == "name" and call.name is None:
            call.set_name((yield from read_string(self._reader)))
        elif key in _ARGUMENTS and not call.has_arguments:
            yield from read_arguments(self._reader, call.say)
            call.end_arguments()
        else:
            yield from JsonText(self._reader, lambda _: None).value()


class _Call:
    """One call while its members come in any order: arguments before the name are held."""

    def __init__(self, writer: Writer, known: Container[str] | None) -> None:
        self._writer = writer
        self._known = known
        self._held: list[str] = []
        self._has_begun = False
        self.name: str | None = None
        self.has_arguments = False

    def set_name(self, name: str) -> None:
        if not name or (self._known is not None and name not in self._known):
            raise MalformedError
        self.name = name
        if self.has_arguments:
            self._finish("".join(self._held))

    def say(self, text: str) -> None:
        if self.name is None:
            self._held.append(text)
            return
        if not self._has_begun:
            self._has_begun = True
            self._writer.begin(self.name)
        self._writer.arguments(text)

    def end_arguments(self) -> None:
        self.has_arguments = True
        if self.name is not None:
            self._writer.end()

    def close(self) -> None:
        """The object is complete: it was a call, or one without arguments, or none."""
        if self.name is None:
            raise MalformedError
        if not self.has_arguments:
            self._finish(NO_ARGUMENTS)

    def _finish(self, arguments: str) -> None:
        self.say(arguments)
        self._writer.end()


def read_named_call(reader: Reader, writer: Writer, name: str) -> Steps[None]:
    """The arguments of a call whose name was read before them."""
    call = _Call(writer, None)
    call.set_name(name)
    yield from read_arguments(reader, call.say)
    call.end_arguments()


def read_arguments(reader: Reader, say: Callable[[str], None]) -> Steps[None]:
    """The arguments of a call: an object, a string that holds an object, or null, which is an empty one."""
    first = yield from reader.peek()
    if first == "{":
        yield from JsonText(reader, say).object()
    elif first == '"':
        say(whole_object((yield from read_string(reader))))
    else:
        yield from reader.expect("null")
        say(NO_ARGUMENTS)
