"""Stop strings across the borders of tokens: what is released, what is held back, what ends the text."""

import pytest

from plimsoll_runtime.text.stop_strings import StopMatcher


def run(stops: tuple[str, ...], pieces: list[str]) -> tuple[list[str], str | None]:
    """What is released for each piece, the rest at the end last, and the stop that matched."""
    matcher, released = StopMatcher(stops), []
    for piece in pieces:
        text, matched = matcher.push(piece)
        released.append(text)
        if matched is not None:
            return released, matched
    return [*released, matcher.flush()], None


@pytest.mark.parametrize(
    ("stops", "pieces", "released", "matched"),
    [
        pytest.param(("\nUser:",), ["Hello", "\nUs", "er", ": next"], ["Hello", "", "", ""], "\nUser:", id="B50-split"),
        pytest.param(("\nUser:",), ["a", "\nUs", "ual end"], ["a", "", "\nUsual end", ""], None, id="B50-false-start"),
        pytest.param(("\nUser:",), ["a\nUs"], ["a", "\nUs"], None, id="B50-false-start-at-the-end"),
        pytest.param(("STOP",), ["A B ", "STO", "P C"], ["A B ", "", ""], "STOP", id="B54-split"),
        pytest.param((), ["a", "b"], ["a", "b", ""], None, id="B55-no-stops"),
        pytest.param(("a", "a"), ["xa"], ["x"], "a", id="B55-twice-the-same"),
        pytest.param(("x" * 10_000,), ["x" * 9_999, "y"], ["", "x" * 9_999 + "y", ""], None, id="B55-long-stop"),
        pytest.param(("。",), ["a", "。b"], ["a", ""], "。", id="B60-two-bytes-wide"),
        pytest.param(("🌍",), ["a🌍"], ["a"], "🌍", id="B60-four-bytes"),
        pytest.param(("\u00e9",), ["e\u0301"], ["e\u0301", ""], None, id="B60-composed-is-not-decomposed"),
        pytest.param(("\u0301",), ["e\u0301"], ["e"], "\u0301", id="B60-a-mark-alone"),
        pytest.param(("ab", "b"), ["xab"], ["x"], "ab", id="complete-at-once-the-longer-wins"),
        pytest.param(("abcd", "bc"), ["xabcd"], ["xa"], "bc", id="complete-first-wins"),
        pytest.param(("aab",), ["aa", "aab"], ["", "aa"], "aab", id="a-start-inside-a-start"),
        pytest.param(("aab",), ["aaab"], ["a"], "aab", id="a-start-that-begins-again"),
        pytest.param(("abab",), ["aba", "cabab"], ["", "abac"], "abab", id="a-start-that-repeats"),
        pytest.param(("ab", "bX"), ["a", "c", "b"], ["", "ac", "", "b"], None, id="two-that-begin"),
    ],
)
def test_text_before_the_stop_is_released_and_nothing_after(
    stops: tuple[str, ...], pieces: list[str], released: list[str], matched: str | None
) -> None:
    """The beginning of a stop leaked into streams, or a false start was lost."""
    assert run(stops, pieces) == (released, matched)
