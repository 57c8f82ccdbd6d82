"""Detokenizing, for all token sequences: pieces together are the whole, and no character is ever split."""

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.text.detokenizer import Detokenizer
from plimsoll_runtime.text.gguf_vocabulary import tokenizer_from_gguf
from plimsoll_runtime.text.tokenizer import Tokenizer
from text.vocabularies import corpus, tiny_byte_level, tiny_scored

VOCABULARIES = {"byte level": tiny_byte_level, "scored": lambda: tiny_scored(add_space_prefix=False)}


@functools.cache
def tokenizer_of(name: str) -> Tokenizer:
    return tokenizer_from_gguf(VOCABULARIES[name]())


def pieces_of(tokenizer: Tokenizer, token_ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.flush()]


@pytest.mark.parametrize("name", VOCABULARIES)
@given(data=st.data())
def test_pieces_of_any_ids_are_the_whole(name: str, data: st.DataObject) -> None:
    tokenizer = tokenizer_of(name)
    token_ids = data.draw(st.lists(st.integers(0, tokenizer.num_tokens - 1), max_size=20))
    assert "".join(pieces_of(tokenizer, token_ids)) == tokenizer.decode(token_ids)


@pytest.mark.parametrize("name", VOCABULARIES)
@given(text=st.one_of(st.text(max_size=20), st.sampled_from(sorted(corpus().values()))), cut=st.integers(0, 60))
def test_every_prefix_of_a_text_is_text_and_at_most_one_replacement(name: str, text: str, cut: int) -> None:
    tokenizer = tokenizer_of(name)
    token_ids = tokenizer.encode(text, parse_special=False, add_special=False)
    if name == "scored":
        text = text.replace("\u2581", " ")  # SentencePiece spells a space so, and itself too
    assert tokenizer.decode(token_ids) == text
    *pieces, rest = pieces_of(tokenizer, token_ids[:cut])
    assert text.startswith("".join(pieces))
    assert rest in ("", "\ufffd")
