"""Amounts as Kubernetes writes them: 1000m and 1, 2048Mi and 2Gi are the same.

Owns the suffixes. In: a text or number of a manifest or a flag. Out: the exact amount. Source: the grammar of
resource.Quantity in the Kubernetes API reference.
"""

import re
from fractions import Fraction
from typing import Any, Final

BYTES_PATTERN: Final = r"^([0-9]{1,18}|[0-9]{1,6}([.][0-9]{1,3})?([kMGT]|[KMGT]i))$"
"""An amount of memory: whole bytes, or a number with a suffix. Nobody has a part of a byte, or an exabyte."""

_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_AMOUNT: Final = re.compile(r"([0-9]{1,30}(?:\.[0-9]{0,30})?)(?:([KMGTPE]i|[numkMGTPE]?)|[eE]([+-]?[0-9]{1,3}))")


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
