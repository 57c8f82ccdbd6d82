"""The text of one answer while it arrives, read character by character by a grammar that can wait.

Owns what has come and how far it was read. A grammar is written as a generator: where it needs a character that has not
come, it yields, and goes on when more text is there. So it sees one sequence of characters, and what it makes of them
cannot depend on how they were cut. In: pieces of text, then the end. Out: characters, MalformedError where they are not
what the grammar needs, EndOfTextError where they end first.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Final, TypeVar

Result = TypeVar("Result")
Steps = Generator[None, None, Result]
"""A reading that yields whenever it needs more text, and returns a Result."""

SPACE: Final = frozenset(" \t\r\n")


class MalformedError(Exception):
    """The text is not what the grammar needs here."""


class EndOfTextError(Exception):
    """The text ended inside something."""


class Reader:
    """Made anew for each choice. What was read since the last `commit` can be had again."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._has_ended = False

    def feed(self, text: str) -> None:
        self._text += text

    def end(self) -> None:
        self._has_ended = True

    def commit(self) -> None:
        """What was read so far is settled, and forgotten."""
        self._text = self._text[self._at :]
        self._at = 0

    @property
    def uncommitted(self) -> str:
        """What was read since the last commit."""
        return self._text[: self._at]

    def rewind(self) -> None:
        """Back to the last commit: the same text is read once more."""
        self._at = 0

    @property
    def unread(self) -> str:
        """What has come and was not read."""
        return self._text[self._at :]

    def peek(self) -> Steps[str]:
        """The next character, not taken; the empty string at the end."""
        while self._at == len(self._text):
            if self._has_ended:
                return ""
            yield
        return self._text[self._at]

    def take(self) -> Steps[str]:
        character = yield from self.peek()
        if not character:
            raise EndOfTextError
        self._at += 1
        return character

    def take_one_of(self, characters: str) -> Steps[str]:
        """The next character, which must be one of these."""
        character = yield from self.peek()
        if character and character not in characters:
            raise MalformedError
        return (yield from self.take())

    def expect(self, text: str) -> Steps[None]:
        for character in text:
            if (yield from self.take()) != character:
                self._at -= 1
                raise MalformedError

    def skip(self, characters: frozenset[str] = SPACE) -> Steps[str]:
        """Takes what is of these characters, and gives the character after it, as `peek` does."""
        while (character := (yield from self.peek())) and character in characters:
            self._at += 1
        return character

    def take_while(self, is_wanted: Callable[[str], bool]) -> Steps[str]:
        """Takes what is wanted, often nothing. Raises EndOfTextError where the text ended before what is not."""
        start = self._at
        while (character := (yield from self.peek())) and is_wanted(character):
            self._at += 1
        if not character:
            raise EndOfTextError
        return self._text[start : self._at]

    def take_if(self, options: Sequence[str]) -> Steps[str | None]:
        """Takes the longest of the texts that stands here; waits as long as one may still come.

        Raises EndOfTextError where the text ended inside one of them.
        """
        standing: str | None = None
        for option in sorted(options, key=len):
            while not self._decided(option):
                yield
            if self._text.startswith(option, self._at):
                standing = option
        unread = self.unread
        if self._has_ended and unread and any(option != unread and option.startswith(unread) for option in options):
            raise EndOfTextError
        if standing is not None:
            self._at += len(standing)
        return standing

    def require(self, options: Sequence[str]) -> Steps[str]:
        """As `take_if`, where one of the options must stand."""
        found = yield from self.take_if(options)
        if found is None:
            raise MalformedError if (yield from self.peek()) else EndOfTextError
        return found

    def _decided(self, option: str) -> bool:
        """Whether what has come says that `option` stands here, or that it does not."""
        come = self._text[self._at : self._at + len(option)]
        return self._has_ended or len(come) == len(option) or not option.startswith(come)

    def take_free(self, firsts: frozenset[str]) -> str:
        """All that has come before the first of these characters, taken at once so that plain text is cheap."""
        places = [place for first in firsts if (place := self._text.find(first, self._at)) >= 0]
        start, self._at = self._at, min(places, default=len(self._text))
        return self._text[start : self._at]
