"""The vocabulary inside a GGUF file, checked and built into a tokenizer.

Owns the keys `tokenizer.ggml.*`: their types, their defaults, and which values are understood. In: the file's
metadata as Python values. Out: a `Tokenizer`. It does not read files. Source of behaviour: llama.cpp, whose recorded
ids the tests compare with. Invariant: what is not proven to give llama.cpp's ids is refused by key and value.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, processors

from plimsoll_runtime.text.byte_level_bpe import build_byte_level
from plimsoll_runtime.text.errors import TokenizerError
from plimsoll_runtime.text.gguf_keys import TYPE_USER_DEFINED, Vocabulary, read_vocabulary
from plimsoll_runtime.text.sentencepiece_bpe import build_sentencepiece
from plimsoll_runtime.text.special_tokens import SpecialTokens, end_ids
from plimsoll_runtime.text.token_bytes import PieceBytes, byte_level_bytes, sentencepiece_bytes
from plimsoll_runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class _Kind:
    """What `tokenizer.ggml.model` stands for, with llama.cpp's defaults for absent keys."""

    piece_bytes: PieceBytes
    bos_id: int | None
    eos_id: int | None
    adds_bos: bool


_KINDS = {
    "gpt2": _Kind(byte_level_bytes, bos_id=None, eos_id=None, adds_bos=False),
    "llama": _Kind(sentencepiece_bytes, bos_id=1, eos_id=2, adds_bos=True),
}


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer that the metadata describes. Raises TokenizerError naming the key and its value."""
    model = metadata.get("tokenizer.ggml.model")
    kind = _KINDS.get(model) if isinstance(model, str) else None
    if kind is None:
        raise TokenizerError(
            f"tokenizer.ggml.model is {model!r}: supported are {', '.join(_KINDS)}; convert the model to one of them, "
            "or serve it from its Hugging Face folder"
        )
    vocabulary = read_vocabulary(metadata)
    if model == "gpt2":
        library, adds_bos = build_byte_level(vocabulary)
    else:
        library, adds_bos = build_sentencepiece(vocabulary), kind.adds_bos
    special = _special_tokens(vocabulary, kind, adds_bos)
    _add_tokens(library, vocabulary, special)
    _add_begin_and_end(library, vocabulary, special)
    return Tokenizer(library, special, kind.piece_bytes)


def _special_tokens(vocabulary: Vocabulary, kind: _Kind, adds_bos: bool) -> SpecialTokens:
    bos_id = vocabulary.token_id("bos", kind.bos_id)
    eos_id = vocabulary.token_id("eos", kind.eos_id)
    declared = (eos_id, vocabulary.token_id("eot"), vocabulary.token_id("eom"))
    ends = end_ids((token_id for token_id in declared if token_id is not None), vocabulary.ids, vocabulary.is_control)
    named = {
        f"{name}_token": vocabulary.tokens[token_id]
        for name, token_id in (
            ("bos", bos_id),
            ("eos", eos_id),
            ("unk", vocabulary.token_id("unknown")),
            ("pad", vocabulary.token_id("padding")),
        )
        if token_id is not None
    }
    adds_bos = vocabulary.flag("add_bos_token", adds_bos) and bos_id is not None
    return SpecialTokens(bos_id=bos_id, eos_id=eos_id, end_ids=ends, adds_bos=adds_bos, named=named)


def _add_tokens(library: tokenizers.Tokenizer, vocabulary: Vocabulary, special: SpecialTokens) -> None:
    """Control and unknown tokens are recognized where asked for, user-defined ones in any text."""
    added = []
    for token_id, text in enumerate(vocabulary.tokens):
        # An end of turn that the converter did not mark is a control token all the same.
        is_special = vocabulary.is_control(token_id) or token_id in special.end_ids
        if is_special or vocabulary.types[token_id] == TYPE_USER_DEFINED:
            added.append(AddedToken(text, special=is_special, normalized=False))
    library.add_tokens(added)


def _add_begin_and_end(library: tokenizers.Tokenizer, vocabulary: Vocabulary, special: SpecialTokens) -> None:
    adds_eos = vocabulary.flag("add_eos_token", False) and special.eos_id is not None
    begin = [special.named["bos_token"]] if special.adds_bos else []
    end = [special.named["eos_token"]] if adds_eos else []
    if begin or end:
        library.post_processor = processors.TemplateProcessing(
            single=[*begin, "$A", *end], special_tokens=[(text, vocabulary.ids[text]) for text in {*begin, *end}]
        )
