"""Stop strings, for all texts: the result is that of the whole text, however it is cut, and little is held back."""

from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.text.stop_strings import StopMatcher

TEXTS = st.text(alphabet="abé", max_size=30)
STOPS = st.lists(st.text(alphabet="abé", min_size=1, max_size=5), max_size=4).map(tuple)


def expected(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """Read character by character: the stop that is complete first, of several the longest."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end - len(stop)], stop
    return text, None


def longest_beginning(text: str, stops: tuple[str, ...]) -> int:
    beginnings = (stop[:length] for stop in stops for length in range(1, len(stop)))
    return max((len(beginning) for beginning in beginnings if text.endswith(beginning)), default=0)


@given(pieces=st.lists(TEXTS, max_size=6), stops=STOPS)
def test_any_cut_gives_what_the_whole_text_gives(pieces: list[str], stops: tuple[str, ...]) -> None:
    matcher, released, seen, matched = StopMatcher(stops), "", "", None
    for piece in pieces:
        text, matched = matcher.push(piece)
        seen, released = seen + piece, released + text
        if matched is not None:
            break
        assert len(seen) - len(released) == longest_beginning(seen, stops)
    released += "" if matched is not None else matcher.flush()
    assert (released, matched) == expected("".join(pieces), stops)
