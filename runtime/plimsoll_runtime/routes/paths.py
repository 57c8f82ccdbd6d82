"""The paths this server answers, and their names in metrics: bounded, whatever a client asks for."""

from plimsoll_runtime.contract import endpoints
from plimsoll_runtime.contract.metrics import OTHER_ROUTE

KNOWN = frozenset(
    (
        *endpoints.GENERATION_ROUTES,
        endpoints.COUNT_TOKENS,
        endpoints.MODELS,
        endpoints.TOKENIZE,
        endpoints.DETOKENIZE,
        endpoints.DECIDE_BUDGET,
        endpoints.BUDGET,
    )
)


def route_label(path: str) -> str:
    """The path itself where it is ours, else `other`."""
    return path if path in KNOWN else OTHER_ROUTE
