"""Token by token to text, for one choice of one answer.

Owns the bytes of a character that is not complete yet. In: token ids in order. Out: text. Invariants: no character is
ever split; nothing is lost at the end, where an incomplete character becomes U+FFFD once; all pieces together are
what `Tokenizer.decode` gives for all ids.
"""

import codecs
from collections.abc import Container

from plimsoll_runtime.text.tokenizer import Tokenizer


class Detokenizer:
    """Made anew for each choice."""

    def __init__(self, tokenizer: Tokenizer, shown: Container[int] = frozenset()) -> None:
        """`shown`: control tokens whose text is wanted, as marks for whoever reads on."""
        self._tokenizer = tokenizer
        self._shown = shown
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that this token completes, often none; a control token has none."""
        if self._tokenizer.is_special(token_id) and token_id not in self._shown:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """What is left at the end."""
        return self._decoder.decode(b"", final=True)
