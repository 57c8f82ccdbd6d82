"""Amounts as Kubernetes writes them: 1000m and 1, 2048Mi and 2Gi are the same.

Owns the suffixes. In: values of manifests and of live objects. Out: one spelling for equal amounts. Source: the
grammar of resource.Quantity in the Kubernetes API reference. Invariant: what is no amount is left as it is.
"""

import re
from fractions import Fraction
from typing import Any, Final

_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_AMOUNT: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?)(?:([KMGTPE]i|[numkMGTPE]?)|[eE]([+-]?[0-9]{1,3}))")
_HOLD_AMOUNTS: Final = frozenset({"requests", "limits", "emptyDir"})


def amount(value: Any) -> Fraction | None:
    """The exact amount, or None for what is none."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    found = _AMOUNT.fullmatch(str(value))
    if found is None:
        return None
    number, suffix, exponent = found.groups()
    if exponent is not None:
        return Fraction(number) * Fraction(10) ** int(exponent)
    return Fraction(number) * (2 ** _BINARY[suffix] if suffix in _BINARY else Fraction(10) ** _DECIMAL[suffix])


def canonical_quantities(value: Any, holds_amounts: bool = False) -> Any:
    """The same tree, with every amount (below requests, limits and emptyDir) in one spelling."""
    if isinstance(value, dict):
        return {key: canonical_quantities(below, holds_amounts or key in _HOLD_AMOUNTS) for key, below in value.items()}
    if isinstance(value, list):
        return [canonical_quantities(below) for below in value]
    exact = amount(value) if holds_amounts else None
    return value if exact is None else str(exact)
