"""What one sequence may write next under a form: a `TokenRule` over llguidance.

Owns the state of one sequence, and how much processor time its masks may take: they are made on the engine's thread,
between two steps of everybody. Where the form is complete the end tokens are allowed, and where nothing may follow,
they alone. Shapes: V the model's usable tokens.
"""

import time
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from plimsoll_runtime.token_rules import RuleFailure

FIRST_SECONDS: Final = 0.1
SECONDS_PER_TOKEN: Final = 0.003
"""Processor time that masks may take: so much at first, and so much more with every token."""


class Matcher:
    """`library` is owned from here on; `param` is the client's name of the form."""

    def __init__(
        self, library: LLMatcher, num_tokens: int, param: str, processor_clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._library = library
        self._num_tokens = num_tokens
        self._param = param
        self._clock = processor_clock
        self._seconds_left = FIRST_SECONDS

    def allowed(self) -> npt.NDArray[np.bool_]:
        if self._seconds_left < 0:
            slow = f"more than {1000 * SECONDS_PER_TOKEN:g} ms of processor time a token"
            raise RuleFailure(f"{self._param} takes {slow} to be followed: make it simpler")
        started = self._clock()
        bits = np.frombuffer(self._library.compute_bitmask(), dtype=np.uint8)
        self._spend(started)
        if self._library.is_error():
            raise RuleFailure(f"{self._param} is too complex to be followed further than to here: make it simpler")
        allowed_V = np.unpackbits(bits, count=self._num_tokens, bitorder="little").view(np.bool_)
        if not allowed_V.any():
            raise RuleFailure(f"{self._param} has no answer that this model's tokens can spell: change it")
        return allowed_V

    def advance(self, token_id: int) -> None:
        started = self._clock()
        self._library.consume_token(token_id)
        self._spend(started)
        self._seconds_left += SECONDS_PER_TOKEN

    def _spend(self, started: float) -> None:
        self._seconds_left -= self._clock() - started
