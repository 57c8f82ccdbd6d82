"""What a list of merges tells about the pre-tokenizer it was made with.

Owns the reading of that evidence. A merge never crosses a cut, so what was merged shows what was not cut: digits that
stand together, punctuation at the front of words. In: merges in the byte-level alphabet. Out: `Evidence`, or None
where there are too few merges to tell. Knows no names of pre-tokenizers.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from plimsoll_runtime.text.token_bytes import byte_level_bytes

ENOUGH_MERGES = 10_000
"""A vocabulary of this size, made on any mixture of texts, has numbers and programs among its merges if it may."""

_SAMPLE = 50_000
"""So many merges, taken evenly, tell as much as all of them."""

_CONTRACTION_MARK = "'"


@dataclass(frozen=True, slots=True)
class Evidence:
    """`digits_together`: 1, 3, or None for more than three; `punctuation_starts_words`: merges such as `.com`."""

    digits_together: int | None
    punctuation_starts_words: bool

    def __str__(self) -> str:
        digits = "more than three" if self.digits_together is None else f"at most {self.digits_together}"
        words = "with" if self.punctuation_starts_words else "without"
        return f"{digits} digits together, words {words} punctuation in front"


def gather_evidence(merges: list[tuple[str, str]]) -> Evidence | None:
    """Read the merges, or None where they are too few to tell."""
    if len(merges) < ENOUGH_MERGES:
        return None
    sample = merges[:: max(1, len(merges) // _SAMPLE)]
    texts = [byte_level_bytes(left + right).decode(errors="replace") for left, right in sample]
    longest = max((len(text) for text in texts if text.isascii() and text.isdigit()), default=1)
    digits = longest if longest == 1 else 3 if longest <= 3 else None
    # One in a thousand tells real practice from a stray merge.
    return Evidence(digits, _count_punctuated_words(texts) * 1000 > len(texts))


def _count_punctuated_words(texts: Iterable[str]) -> int:
    return sum(1 for text in texts if _is_punctuated_word(text))


def _is_punctuated_word(text: str) -> bool:
    first, rest = text[0], text[1:]
    is_punctuation = not (first.isalnum() or first.isspace() or first in (_CONTRACTION_MARK, "\ufffd"))
    return is_punctuation and rest.isascii() and rest.isalpha()
