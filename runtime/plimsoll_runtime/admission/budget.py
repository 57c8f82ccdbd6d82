"""The budget law: how many output tokens a prompt is granted, and why. Arithmetic only.

Owns points 2 to 5 of the law. In: prompt tokens, the output limit of the request (None: not given) and the effective
`Limits`. Out: a `Budget`, or a `Refusal` with every number. It knows no route: that is why all routes agree.
Invariants: a grant is at least 1, never above what was wanted, the hard limit, or the room left in the context; an
omitted limit is never the reason of a refusal; prompt + output = context length is a fit.
"""

from plimsoll_runtime.admitted import Budget, LimitedBy
from plimsoll_runtime.contract.config import Limits, field_names
from plimsoll_runtime.refusal import BudgetCause, Refusal


def decide_budget(prompt_tokens: int, requested_output_tokens: int | None, limits: Limits) -> Budget | Refusal:
    """The decision on one prompt. `requested_output_tokens` was checked to be in 1..2**31-1 before."""
    room = limits.context_length - prompt_tokens
    cause = _cause_of_refusal(room, requested_output_tokens, limits)
    if cause is not None:
        return _refusal(cause, prompt_tokens, requested_output_tokens, limits)
    wanted = limits.max_output_default if requested_output_tokens is None else requested_output_tokens
    granted = min(wanted, room) if limits.max_output_limit is None else min(wanted, limits.max_output_limit, room)
    return Budget(
        prompt_tokens=prompt_tokens,
        requested_output_tokens=requested_output_tokens,
        max_output_tokens=granted,
        limited_by=_limited_by(granted, wanted, requested_output_tokens, limits),
        context_length=limits.context_length,
    )


def _limited_by(granted: int, wanted: int, requested: int | None, limits: Limits) -> LimitedBy:
    """The first that equals the grant: what was wanted, the hard limit, the context."""
    if granted == wanted:
        return "default" if requested is None else "request"
    return "limit" if granted == limits.max_output_limit else "context"


def _cause_of_refusal(room: int, requested: int | None, limits: Limits) -> BudgetCause | None:
    if room < 1:
        return "prompt"
    if requested is None or limits.over_budget == "clamp":
        return None
    limit = limits.max_output_limit
    if limit is not None and requested > limit and limit < room:
        return "limit"
    if requested > room:
        return "request"
    return "limit" if limit is not None and requested > limit else None


def _refusal(cause: BudgetCause, prompt_tokens: int, requested: int | None, limits: Limits) -> Refusal:
    return Refusal(
        code="invalid_value" if cause == "limit" else "context_length_exceeded",
        message=_sentence(cause, prompt_tokens, requested, limits),
        numbers={
            "prompt_tokens": prompt_tokens,
            "requested_output_tokens": requested,
            "max_output_limit": limits.max_output_limit,
            "context_length": limits.context_length,
        },
        budget_cause=cause,
    )


def _sentence(cause: BudgetCause, prompt_tokens: int, requested: int | None, limits: Limits) -> str:
    context = f"context_length {limits.context_length:,}"
    raise_context = f"raise {field_names('context_length')} on the server"
    match cause:
        case "prompt":
            return (
                f"prompt_tokens {prompt_tokens:,} leave no room for output within {context}: shorten the prompt, or "
                f"{raise_context}"
            )
        case "request":
            return (
                f"prompt_tokens {prompt_tokens:,} + requested_output_tokens {requested:,} exceed {context}: ask for at "
                f"most {limits.context_length - prompt_tokens:,}, shorten the prompt, or {raise_context}"
            )
        case "limit":
            return (
                f"requested_output_tokens {requested:,} exceed max_output_limit {limits.max_output_limit:,}: ask for "
                f"at most that, or raise {field_names('max_output_limit')} on the server"
            )
