"""What a sequence may write next, as the engine knows it: a rule that is told every token and asked before each.

Owns the protocol, and how rules are joined. Those who make rules know text and forms; the engine knows neither.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt


class RuleFailure(Exception):
    """A rule that cannot say what may come next: what the client asked for is the reason, and its message says so."""


class TokenRule(Protocol):
    """What one sequence may write next. It is told every token, and travels with its sequence; the engine, on whose
    thread it is called, knows nothing else of it."""

    def allowed(self) -> npt.NDArray[np.bool_] | None:
        """Whether each of the model's tokens [V] may come next, at least one; None: all of them. Raises RuleFailure."""
        ...

    def advance(self, token_id: int) -> None:
        """The token that came."""
        ...


class AllOf:
    """Several rules for one sequence: what every one of them allows."""

    def __init__(self, rules: Sequence[TokenRule]) -> None:
        self._rules = rules

    def allowed(self) -> npt.NDArray[np.bool_] | None:
        masks = [mask for rule in self._rules if (mask := rule.allowed()) is not None]
        return np.logical_and.reduce(masks) if masks else None

    def advance(self, token_id: int) -> None:
        for rule in self._rules:
            rule.advance(token_id)
