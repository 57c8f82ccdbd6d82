"""SentencePiece's BPE by scores, for GGUF vocabularies of model `llama` (Llama 2, Mistral, Gemma).

Owns the translation of scores into merges. SentencePiece joins the two neighbours whose joined text has the highest
score; the `tokenizers` library joins the two whose merge stands first in a list. So the list has every way to cut
every token in two, highest score first. In: a checked vocabulary. Out: a `tokenizers.Tokenizer` without added tokens.

Characters without a token become their bytes. Invariants: every character of a token is a token itself, else the list
could not reach it, and the vocabulary is refused; no merge makes a control token, so that one typed as text stays text.
"""

from collections.abc import Iterator

import tokenizers
from tokenizers import models, normalizers

from plimsoll_runtime.text.errors import TokenizerError
from plimsoll_runtime.text.gguf_keys import PREFIX, TYPE_NORMAL, TYPE_UNUSED, Vocabulary
from plimsoll_runtime.text.token_bytes import SPACE_MARK


def build_sentencepiece(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """The tokenizer of a scored vocabulary. Raises TokenizerError naming the key."""
    scores = vocabulary.numbers("scores")
    if scores is None:
        raise TokenizerError(f"{PREFIX}scores is missing: a vocabulary of model llama cannot be read without")
    _require_bytes(vocabulary)
    unknown = vocabulary.token_id("unknown", 0)
    model = models.BPE(
        vocab=vocabulary.ids,
        merges=_merges(vocabulary, scores),
        unk_token=None if unknown is None else vocabulary.tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    library = tokenizers.Tokenizer(model)
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE_MARK)]
    if vocabulary.flag("add_space_prefix", True):
        spaces.insert(0, normalizers.Prepend(SPACE_MARK))
    library.normalizer = normalizers.Sequence(spaces)
    return library


def _require_bytes(vocabulary: Vocabulary) -> None:
    missing = [byte for byte in range(256) if f"<0x{byte:02X}>" not in vocabulary.ids]
    if missing:
        raise TokenizerError(
            f"{PREFIX}tokens lacks {len(missing)} of the 256 byte tokens, the first <0x{missing[0]:02X}>: a text with "
            "that byte could not be read exactly"
        )


def _merges(vocabulary: Vocabulary, scores: list[float]) -> list[tuple[str, str]]:
    """Every way to cut every token in two tokens, best token first, of one token the leftmost cut first."""
    ids = vocabulary.ids
    mergeable = (
        token_id
        for token_id, token_type in enumerate(vocabulary.types)
        if token_type in (TYPE_NORMAL, TYPE_UNUSED) and len(vocabulary.tokens[token_id]) > 1
    )
    best_first = sorted(mergeable, key=lambda token_id: -scores[token_id])
    return [pair for token_id in best_first for pair in _cuts(vocabulary.tokens[token_id], ids)]


def _cuts(text: str, ids: dict[str, int]) -> Iterator[tuple[str, str]]:
    for cut in range(1, len(text)):
        left, right = text[:cut], text[cut:]
        if left in ids and right in ids:
            yield left, right
        elif (left in ids or cut == 1) and (right in ids or cut == len(text) - 1):
            raise TokenizerError(
                f"{PREFIX}tokens has {text!r} but not all of its characters: such a vocabulary is not supported; serve "
                "the model from its Hugging Face folder"
            )
