"""Where a text ends because a stop string stands in it, found while the text arrives in pieces.

Owns what is held back. In: pieces of text. Out: text that no stop string can begin in, and the stop that matched.
Invariants: the result depends on the text alone, never on how it was cut; the match that is complete first wins, of
two complete at once the longer; never is more held back than the longest beginning of a stop that the text ends with.
The search is Knuth, Morris and Pratt's, one state per stop, so a long stop costs no more than a short one.
"""


class StopMatcher:
    """Made anew for each choice. After a match it must not be used any more."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        """`stops` are not empty strings; order and repetition do not matter."""
        longest_first = sorted(set(stops), key=len, reverse=True)
        self._automata = [_Automaton(stop) for stop in longest_first]
        self._held = ""

    def fresh(self) -> "StopMatcher":
        """The same stops before another text. Their tables, as long as the stops are, are shared."""
        fresh = StopMatcher(())
        fresh._automata = [automaton.fresh() for automaton in self._automata]
        return fresh

    def push(self, text: str) -> tuple[str, str | None]:
        """Text to release now, and the stop that ended it (the stop and what follows it are never released)."""
        if not self._automata:
            return text, None
        pending = self._held + text
        for end in range(len(self._held), len(pending)):
            stop = self._advance(pending[end])
            if stop is not None:
                self._held = ""
                return pending[: end + 1 - len(stop)], stop
        held = max(automaton.matched for automaton in self._automata)
        self._held = pending[len(pending) - held :]
        return pending[: len(pending) - held], None

    def flush(self) -> str:
        """What was held back, when the text ends without a match."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> str | None:
        """Move all automata; they all move before one is asked, so that ties go to the longest."""
        complete = [automaton.stop for automaton in self._automata if automaton.advance(character)]
        return complete[0] if complete else None


class _Automaton:
    """How much of one stop the text ends with."""

    __slots__ = ("_fallback", "matched", "stop")

    def __init__(self, stop: str, fallback: list[int] | None = None) -> None:
        self.stop = stop
        self.matched = 0
        self._fallback = _fallbacks(stop) if fallback is None else fallback

    def fresh(self) -> "_Automaton":
        return _Automaton(self.stop, self._fallback)

    def advance(self, character: str) -> bool:
        """Read one character; True when the stop is complete."""
        while self.matched and self.stop[self.matched] != character:
            self.matched = self._fallback[self.matched]
        if self.stop[self.matched] == character:
            self.matched += 1
        return self.matched == len(self.stop)


def _fallbacks(stop: str) -> list[int]:
    """For each n: how long a beginning of `stop` its first n characters end with, themselves not counted."""
    fallbacks = [0, 0]
    for length in range(1, len(stop)):
        candidate = fallbacks[length]
        while candidate and stop[candidate] != stop[length]:
            candidate = fallbacks[candidate]
        fallbacks.append(candidate + 1 if stop[candidate] == stop[length] else 0)
    return fallbacks
