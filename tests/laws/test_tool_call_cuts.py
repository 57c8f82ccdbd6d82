"""Tool-call parsers, for all texts: nothing raises, and what is read depends on the text alone, never on its cut."""

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.text.tool_calls.formats import GRAMMARS
from text.tool_call_corpus import CORPORA, said

NAMES: Any = st.sampled_from(sorted(GRAMMARS))


def recorded(name: str) -> list[str]:
    corpus = CORPORA[name]
    return [*(row["text"] for row in corpus["answers"]), *corpus["malformed"]]


@st.composite
def mutated(draw: Any) -> tuple[str, str]:
    """A recorded answer with a few pieces dropped, doubled or put in from another one."""
    name = draw(NAMES)
    text = draw(st.sampled_from(recorded(name)))
    for _ in range(draw(st.integers(0, 3))):
        at, end = sorted(draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
        other = draw(st.sampled_from(recorded(name)))
        start = draw(st.integers(0, len(other)))
        put_in = draw(
            st.sampled_from(["", text[at:end] * 2, other[start : start + 12], '"', "{", "}", "\\", "<", "\n"])
        )
        text = text[:at] + put_in + text[min(end, at + 20) :]
    return name, text


def random_cut(text: str, seed: int) -> list[str]:
    chance = random.Random(seed)
    pieces = []
    while text:
        length = chance.randint(1, 9)
        pieces.append(text[:length])
        text = text[length:]
    return pieces


@given(answer=mutated(), seed=st.integers(0, 2**32), was_cut=st.booleans(), takes_one=st.booleans())
def test_any_cut_of_any_text_gives_the_same(answer: tuple[str, str], seed: int, was_cut: bool, takes_one: bool) -> None:
    name, text = answer
    tools = CORPORA[name]["tools"]
    whole = said(name, [text], tools, was_cut=was_cut, takes_one=takes_one)
    assert said(name, random_cut(text, seed), tools, was_cut=was_cut, takes_one=takes_one) == whole
    assert said(name, list(text), tools, was_cut=was_cut, takes_one=takes_one) == whole
