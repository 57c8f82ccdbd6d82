"""The pieces of one answer while a grammar finds them.

Owns what is said, in order, and the rule for white space: where nothing but white space stands between calls, or before
the first or after the last, it is layout of the calls and not content; everything else is content as it was written.
In: content and calls, piece by piece. Out: `Piece`s, neighbouring ones of a kind joined.
"""

from plimsoll_runtime.text.tool_calls.pieces import CallArguments, CallBegun, CallEnded, Content, Piece
from plimsoll_runtime.text.tool_calls.reader import Reader


class EnoughError(Exception):
    """One call was asked for, and it is complete."""


class Writer:
    """Made anew for each choice. `takes_one`: the first complete call is the last thing said."""

    def __init__(self, reader: Reader, *, takes_one: bool) -> None:
        self._reader = reader
        self._takes_one = takes_one
        self._pieces: list[Piece] = []
        self._blank = ""
        self._is_amid_text = False
        self.num_begun = 0
        self.num_ended = 0
        self.has_said_text = False

    def content(self, text: str) -> None:
        """White space alone waits until something follows it."""
        self._blank += text
        if self._blank and (self._is_amid_text or not self._blank.isspace()):
            self._say_blank()

    def _say_blank(self) -> None:
        if self._blank:
            self._add(Content(self._blank))
            self._blank = ""
            self._is_amid_text = self.has_said_text = True

    def begin(self, name: str) -> None:
        self._blank = ""
        self._is_amid_text = False
        self.num_begun += 1
        self._add(CallBegun(name))

    def arguments(self, text: str) -> None:
        if text:
            self._add(CallArguments(text))

    def end(self) -> None:
        """The call is complete, and what was read of it is settled. Raises EnoughError where no other is wanted."""
        self._reader.commit()
        self.num_ended += 1
        self._add(CallEnded())
        if self._takes_one:
            raise EnoughError

    def finish(self) -> None:
        """Nothing follows: an answer without any call was text, white space included."""
        if self.num_begun == 0:
            self._say_blank()

    def take(self) -> list[Piece]:
        """What was said since the last time."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def _add(self, piece: Piece) -> None:
        last = self._pieces[-1] if self._pieces else None
        match last, piece:
            case (Content(), Content()):
                self._pieces[-1] = Content(last.text + piece.text)
            case (CallArguments(), CallArguments()):
                self._pieces[-1] = CallArguments(last.text + piece.text)
            case _:
                self._pieces.append(piece)
