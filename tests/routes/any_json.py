"""Bodies that almost make sense: fields that an API knows, with any JSON value in any place."""

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.just(2.5), st.sampled_from(["", "x", "\x00\n", "é🌍"]))


def bodies(fields: Iterable[str], words: Iterable[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies with a model. `words` are names and values that lead deeper into a converter than random text would."""
    word = st.sampled_from(sorted({*fields, *words}))
    value = st.recursive(
        st.one_of(_SCALARS, word),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(word, inner, max_size=4)),
        max_leaves=12,
    )
    return st.dictionaries(st.sampled_from(sorted(fields)), value, max_size=5).map(lambda body: {"model": "m"} | body)
