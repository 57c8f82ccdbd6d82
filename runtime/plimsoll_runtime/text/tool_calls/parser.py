"""The one loop behind every tool-call parser: content until a call opens, the grammar's reading of it, content again.

Owns what becomes of text that looked like a call and is none: it is content, as it was written, so that nothing is
lost and nothing raises. In: the text of one choice in any pieces, and its end. Out: `Piece`s; put together they are the
same for every cut. It knows no format: a `Grammar` does.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from plimsoll_runtime.text.tool_calls.pieces import Piece
from plimsoll_runtime.text.tool_calls.reader import EndOfTextError, MalformedError, Reader, Steps
from plimsoll_runtime.text.tool_calls.writer import EnoughError, Writer

Tools = Mapping[str, Mapping[str, Any]]
"""The tools offered: the JSON schema of its parameters by each name."""


class Grammar(Protocol):
    """How one format writes calls."""

    openers: tuple[str, ...]
    """What a call begins with, wherever it stands."""
    first_openers: tuple[str, ...]
    """What a call begins with where no text came before it."""
    closers: tuple[str, ...]
    """What calls end with. Such a text is no content where it is owed: where a call ended without it."""

    marks: tuple[str, ...]
    """What else the format writes that a model may have a control token for."""

    def read(self, opener: str) -> Steps[bool]:
        """The calls behind an opener. Returns whether a closer is still owed."""
        ...


class ToolCallParser:
    """Made anew for each choice."""

    def __init__(self, reader: Reader, writer: Writer, grammar: Grammar) -> None:
        self._reader = reader
        self._writer = writer
        self._grammar = grammar
        self._was_cut = False
        self._owes_closer = False
        self._steps = self._run()
        self.is_over = False
        """True once nothing more can come of this answer, whatever the model goes on to write."""

    @property
    def is_after_call(self) -> bool:
        """Whether all that came so far is complete calls, one at the least."""
        writer = self._writer
        return writer.num_begun == writer.num_ended > 0 and not writer.has_said_text

    def feed(self, text: str) -> list[Piece]:
        if self.is_over:
            return []
        self._reader.feed(text)
        return self._go_on()

    def finish(self, *, was_cut: bool) -> list[Piece]:
        """The last pieces. `was_cut`: a limit ended the text, so an unfinished call is left out, else it is content."""
        if self.is_over:
            return []
        self._was_cut = was_cut
        self._reader.end()
        return self._go_on()

    def _go_on(self) -> list[Piece]:
        try:
            next(self._steps)
        except StopIteration:
            self.is_over = True
        return self._writer.take()

    def _run(self) -> Steps[None]:
        try:
            while (opener := (yield from self._content())) is not None:
                yield from self._read_calls(opener)
        except EndOfTextError:
            if not self._was_cut:
                self._writer.content(self._reader.uncommitted + self._reader.unread)
        except EnoughError:
            return
        self._writer.finish()

    def _read_calls(self, opener: str) -> Steps[None]:
        num_ended = self._writer.num_ended
        try:
            self._owes_closer = yield from self._grammar.read(opener)
        except MalformedError:
            self._writer.content(self._reader.uncommitted)
            self._owes_closer = self._writer.num_ended > num_ended

    def _content(self) -> Steps[str | None]:
        """Says text until an opener was taken, which it returns, or None at the end."""
        reader, writer = self._reader, self._writer
        while True:
            reader.commit()
            marks = self._marks()
            writer.content(reader.take_free(frozenset(mark[0] for mark in marks)))
            reader.commit()
            mark = yield from reader.take_if(self._marks())
            if mark in self._grammar.closers:
                self._owes_closer = False
            elif mark is not None:
                return mark
            elif not (yield from reader.peek()):
                return None
            else:
                writer.content((yield from reader.take()))

    def _marks(self) -> tuple[str, ...]:
        grammar = self._grammar
        first = () if self._writer.has_said_text else grammar.first_openers
        return grammar.openers + first + (grammar.closers if self._owes_closer else ())
