"""From a form to a rule for each sequence of a request: tried out, compiled for this model's vocabulary, copied.

Owns the library's view of the vocabulary, which is made with the first form. In: grammars. Out: a `Constraint`, or a
`Refusal` under the form's wire name. `compile` takes milliseconds, at most some seconds: it runs on a thread of its
own, whose stack is larger than that of the trial, so that what the trial survived cannot overflow it.
"""

import functools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from llguidance import LLMatcher, LLTokenizer

from plimsoll_runtime.refusal import Refusal
from plimsoll_runtime.text.structure.errors import StructureError
from plimsoll_runtime.text.structure.library import library_limits, library_tokenizer
from plimsoll_runtime.text.structure.matcher import Matcher
from plimsoll_runtime.text.structure.trial import GrammarTrial
from plimsoll_runtime.text.tokenizer import Tokenizer
from plimsoll_runtime.token_rules import RuleFailure

_LONGEST_PIECE: Final = 32
_STACK_BYTES: Final = 64 * 1024 * 1024
"""Of the compiling thread; the trial's has eight, or what the system gives."""


class Constraint:
    """A compiled form. `matcher` makes the rule of one more sequence; cheap, on any thread."""

    def __init__(self, library: LLMatcher, num_tokens: int, param: str) -> None:
        self._library = library
        self._num_tokens = num_tokens
        self._param = param

    def matcher(self) -> Matcher:
        return Matcher(self._library.deep_copy(), self._num_tokens, self._param)


class StructureCompiler:
    """One per model. `num_tokens`: ids that the model can write; `end_ids` end its answers."""

    def __init__(self, tokenizer: Tokenizer, num_tokens: int, end_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._num_tokens = num_tokens
        self._end_ids = end_ids
        self._trial = GrammarTrial()

    @functools.cached_property
    def executor(self) -> ThreadPoolExecutor:
        """The one thread that compiles, from the first form on."""
        return _thread_with_large_stack()

    def close(self) -> None:
        """Waits for what is being compiled. Nothing comes after."""
        if "executor" in self.__dict__:
            self.executor.submit(self._trial.close)
            self.executor.shutdown()

    def compile(self, make_grammar: Callable[[], str], param: str) -> Constraint | Refusal:
        """On `executor`. `make_grammar` may raise StructureError."""
        try:
            grammar = make_grammar()
            self._trial.check(grammar)
            constraint = self._compiled(grammar, param)
            _begin(constraint.matcher())
        except StructureError as wrong:
            return Refusal("invalid_value", f"{param}: {wrong}", param)
        except RuleFailure as wrong:
            return Refusal("invalid_value", str(wrong), param)
        return constraint

    def _compiled(self, grammar: str, param: str) -> Constraint:
        library = LLMatcher(self._vocabulary, grammar, log_level=0, limits=library_limits())
        if library.is_error():
            raise StructureError(library.get_error().partition("\n")[0][:300])
        return Constraint(library, self._num_tokens, param)

    @functools.cached_property
    def _vocabulary(self) -> LLTokenizer:
        tokenizer = self._tokenizer
        tokens = [tokenizer.token_bytes(token_id) for token_id in range(self._num_tokens)]
        never = {token_id for token_id, token in enumerate(tokens) if not token or tokenizer.is_special(token_id)}
        by_bytes = {token: token_id for token_id, token in enumerate(tokens) if token_id not in never}

        def encode(text: str) -> list[int]:
            """What stands between a grammar's choices, in the model's own tokens where these say the same bytes."""
            ids = tokenizer.encode(text, parse_special=False, add_special=False)
            spelled = text.encode()
            is_same = b"".join(tokenizer.token_bytes(token_id) for token_id in ids) == spelled
            return ids if is_same else _longest_first(spelled, by_bytes)

        return library_tokenizer(tokens, never, self._end_ids, encode)


def _longest_first(spelled: bytes, by_bytes: Mapping[bytes, int]) -> list[int]:
    """The longest token that fits, then the next, as far as there are tokens."""
    ids: list[int] = []
    while spelled:
        lengths = range(min(len(spelled), _LONGEST_PIECE), 0, -1)
        piece = next((spelled[:length] for length in lengths if spelled[:length] in by_bytes), None)
        if piece is None:
            break
        ids.append(by_bytes[piece])
        spelled = spelled[len(piece) :]
    return ids


def _begin(matcher: Matcher) -> None:
    """The first mask twice: the second time says whether the first took too long."""
    matcher.allowed()
    matcher.allowed()


def _thread_with_large_stack() -> ThreadPoolExecutor:
    usual = threading.stack_size(_STACK_BYTES)
    try:
        executor = ThreadPoolExecutor(1, thread_name_prefix="plimsoll-structure")
        executor.submit(lambda: None).result()
    finally:
        threading.stack_size(usual)
    return executor
