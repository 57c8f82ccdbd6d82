"""Byte-level BPE as GPT-2 invented it, for GGUF vocabularies of model `gpt2`.

Owns the kinds of pre-tokenizer: how a text is cut before merging, which the file names in `tokenizer.ggml.pre`. In: a
checked vocabulary. Out: a `tokenizers.Tokenizer` without added tokens. Invariant: the cut is proven, by the key and
the vocabulary together; a wrong cut never shows as an error, only as quietly worse answers, so doubt is a refusal.
"""

from dataclasses import dataclass

import tokenizers
from tokenizers import Regex, models, pre_tokenizers

from plimsoll_runtime.text.errors import TokenizerError
from plimsoll_runtime.text.gguf_keys import PREFIX, Vocabulary
from plimsoll_runtime.text.merge_evidence import Evidence, gather_evidence


@dataclass(frozen=True, slots=True)
class PreTokenizerKind:
    """One way to cut. `pattern` None is GPT-2's own; `most_digits` is how many may stay together, None any number;
    `word_takes_punctuation`: one punctuation character may stick to the front of a word."""

    pattern: str | None
    most_digits: int | None
    word_takes_punctuation: bool
    ignore_merges: bool = False
    adds_bos: bool = False

    def splitter(self) -> pre_tokenizers.PreTokenizer:
        if self.pattern is not None:
            cut = pre_tokenizers.Split(Regex(self.pattern), behavior="isolated")
            last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            return pre_tokenizers.Sequence([cut, last])
        last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        if self.most_digits is None:
            return last
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), last])

    def contradicts(self, evidence: Evidence) -> bool:
        return (
            evidence.digits_together != self.most_digits
            or evidence.punctuation_starts_words is not self.word_takes_punctuation
        )


_WORDS_AND = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_AND_THE_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

_SMOLLM = PreTokenizerKind(None, most_digits=1, word_takes_punctuation=False)
_GPT_2 = PreTokenizerKind(None, most_digits=None, word_takes_punctuation=False)
_LLAMA_3 = PreTokenizerKind(
    _WORDS_AND + r"\p{N}{1,3}" + _AND_THE_REST,
    most_digits=3,
    word_takes_punctuation=True,
    ignore_merges=True,
    adds_bos=True,
)
_QWEN_2 = PreTokenizerKind(_WORDS_AND + r"\p{N}" + _AND_THE_REST, most_digits=1, word_takes_punctuation=True)

PRE_TOKENIZERS = {
    "smollm": _SMOLLM,
    "gpt-2": _GPT_2,
    "llama-bpe": _LLAMA_3,
    "llama-v3": _LLAMA_3,
    "llama3": _LLAMA_3,
    "qwen2": _QWEN_2,
    "deepseek-r1-qwen": _QWEN_2,
}
"""Every kind here is compared with recorded ids of llama.cpp; other names of the same cut are not assumed."""

_CANDIDATES = ("smollm", "gpt-2", "llama-bpe", "qwen2")
_KEY = f"{PREFIX}pre"


def build_byte_level(vocabulary: Vocabulary) -> tuple[tokenizers.Tokenizer, bool]:
    """The tokenizer, and whether texts begin with BOS where the file does not say. Raises TokenizerError."""
    merges = [_pair(line) for line in vocabulary.strings("merges") or []]
    if not merges:
        raise TokenizerError(f"{PREFIX}merges is missing or empty: a vocabulary of model gpt2 cannot be read without")
    kind = _kind(vocabulary, merges)
    try:
        model = models.BPE(vocab=vocabulary.ids, merges=merges, ignore_merges=kind.ignore_merges)
    except Exception as error:
        # The library raises a bare Exception when a merge names a token that the vocabulary lacks.
        raise TokenizerError(f"{PREFIX}merges does not fit {PREFIX}tokens: {error}") from error
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = kind.splitter()
    return library, kind.adds_bos


def _pair(line: str) -> tuple[str, str]:
    # The first character is never the separator: a token may be spelled as a space by old converters.
    cut = line.find(" ", 1)
    return line[:cut], line[cut + 1 :]


def _kind(vocabulary: Vocabulary, merges: list[tuple[str, str]]) -> PreTokenizerKind:
    name = vocabulary.metadata.get(_KEY)
    evidence = gather_evidence(merges)
    if name is None or name == "default":
        return _recovered(name, evidence)
    kind = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise TokenizerError(
            f"{_KEY} is {name!r}: supported are {', '.join(PRE_TOKENIZERS)}; serve the model from its Hugging Face "
            "folder instead"
        )
    if evidence is not None and kind.contradicts(evidence):
        raise TokenizerError(
            f"{_KEY} is {name!r}, but the merges were not made with it ({evidence}): the file is mislabelled and would "
            "be tokenized wrongly; convert the model again with a current converter"
        )
    return kind


def _recovered(name: str | None, evidence: Evidence | None) -> PreTokenizerKind:
    """Files made before the key existed: the merges show which cut they were made with, or the file is refused."""
    fitting = [PRE_TOKENIZERS[candidate] for candidate in _CANDIDATES if evidence is not None]
    fitting = [kind for kind in fitting if evidence is not None and not kind.contradicts(evidence)]
    if len(fitting) != 1:
        said = "missing" if name is None else f"{name!r}"
        raise TokenizerError(
            f"{_KEY} is {said}, and the vocabulary does not prove which pre-tokenizer it was made with: convert the "
            "model again with a current converter, or serve it from its Hugging Face folder"
        )
    return fitting[0]
