"""Values of manifests and live objects that hold amounts, in one spelling for equal amounts.

Owns which fields hold amounts; what an amount is says the contract. Invariant: what is no amount is left as it is.
"""

from typing import Any, Final

from plimsoll_runtime.contract.quantity import amount

_HOLD_AMOUNTS: Final = frozenset({"requests", "limits", "emptyDir"})


def canonical_quantities(value: Any, holds_amounts: bool = False) -> Any:
    """The same tree, with every amount (below requests, limits and emptyDir) in one spelling."""
    if isinstance(value, dict):
        return {key: canonical_quantities(below, holds_amounts or key in _HOLD_AMOUNTS) for key, below in value.items()}
    if isinstance(value, list):
        return [canonical_quantities(below) for below in value]
    exact = amount(value) if holds_amounts else None
    return value if exact is None else str(exact)
