"""How llguidance is set up, in the server and in the process that tries grammars out: a vocabulary, and its bounds.

In: the bytes of every token. Out: the library's own tokenizer. It imports nothing of the runtime, so that the trial's
process starts in a tenth of a second. The bounds are the library's counts of work, far above what forms of real
programs need; what they cannot bound is bounded by processor time (trial_process.py, matcher.py).
"""

from collections.abc import Callable, Collection, Sequence

from llguidance import LLParserLimits, LLTokenizer, TokenizerWrapper


class _Vocabulary:
    """What the library asks of a tokenizer."""

    def __init__(
        self,
        tokens: Sequence[bytes],
        special_token_ids: Collection[int],
        eos_token_id: int,
        encode: Callable[[str], list[int]],
    ) -> None:
        self.tokens = tokens
        self.special_token_ids = sorted(special_token_ids)
        self.eos_token_id = eos_token_id
        self.bos_token_id = None
        self._encode = encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


def library_tokenizer(
    tokens: Sequence[bytes],
    special_ids: Collection[int],
    end_ids: Collection[int],
    encode: Callable[[str], list[int]],
) -> LLTokenizer:
    """`special_ids` never stand in text; `end_ids` are allowed where a form is complete."""
    ends = sorted(end_ids)
    wrapper = TokenizerWrapper(_Vocabulary(tokens, {*special_ids, *ends}, ends[0], encode))
    return LLTokenizer(wrapper, n_vocab=len(tokens), eos_token=ends)


def library_limits() -> LLParserLimits:
    return LLParserLimits(
        max_items_in_row=5_000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=100_000,
        step_max_items=20_000,
        max_lexer_states=20_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )
