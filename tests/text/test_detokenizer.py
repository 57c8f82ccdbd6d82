"""Characters that arrive in several tokens, and texts that end inside one."""

import pytest

from plimsoll_runtime.text.detokenizer import Detokenizer
from plimsoll_runtime.text.gguf_vocabulary import tokenizer_from_gguf
from plimsoll_runtime.text.tokenizer import Tokenizer
from text.vocabularies import tiny_scored


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tokenizer_from_gguf(tiny_scored())


def byte_tokens(tokenizer: Tokenizer, data: bytes) -> list[int]:
    first = next(token_id for token_id in range(tokenizer.num_tokens) if tokenizer.token_bytes(token_id) == b"\0")
    return [first + byte for byte in data]


FAMILY = "👨\u200d👩\u200d👧"


@pytest.mark.parametrize(
    ("data", "pieces", "rest"),
    [
        pytest.param(b"\xf0\x9f\x8c\x8d", ["", "", "", "🌍"], "", id="B57-four-bytes"),
        pytest.param(b" \xe4\xbd\xa0", [" ", "", "", "你"], "", id="B57-space-and-three-bytes"),
        pytest.param(b"ok\xf0\x9f", ["o", "k", "", ""], "\ufffd", id="B57-cut-by-the-limit"),
        pytest.param(b"\xf0\x9fok", ["", "", "\ufffdo", "k"], "", id="never-completed"),
        pytest.param(b"\xffa", ["\ufffd", "a"], "", id="no-beginning-of-anything"),
        pytest.param(b"", [], "", id="nothing"),
    ],
)
def test_a_character_is_said_when_it_is_complete(
    tokenizer: Tokenizer, data: bytes, pieces: list[str], rest: str
) -> None:
    """A character split over tokens arrived as replacement characters."""
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push(token_id) for token_id in byte_tokens(tokenizer, data)] == pieces
    assert detokenizer.flush() == rest
    assert detokenizer.flush() == ""


def test_a_family_over_many_tokens_arrives_whole(tokenizer: Tokenizer) -> None:
    """B57: a combined emoji has several characters; each is whole, and together they are the emoji."""
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(token_id) for token_id in byte_tokens(tokenizer, FAMILY.encode())]
    assert "".join(pieces) == FAMILY
    assert {piece for piece in pieces if piece} == set(FAMILY)


def test_control_tokens_are_never_in_the_text(tokenizer: Tokenizer) -> None:
    """B56, B91: end tokens showed up in answers. One inside a character does not break it either."""
    end = min(tokenizer.eos_token_ids)
    detokenizer = Detokenizer(tokenizer)
    first, second = byte_tokens(tokenizer, "é".encode())
    assert [detokenizer.push(token_id) for token_id in (end, first, end, second)] == ["", "", "", "é"]
    assert tokenizer.token_bytes(end) == b"</s>"
