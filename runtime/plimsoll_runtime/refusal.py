"""A client's mistake, or the server's inability right now, as a value: never an exception across modules.

Owns the list of codes. In: what a check found. Out: a frozen `Refusal` that a dialect turns into its own status and
body (routes/errors.py has the table). It does not know HTTP statuses or bodies. Invariant: every refusal is decided
before the first byte of an answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

RefusalCode = Literal[
    "invalid_json",
    "invalid_type",
    "invalid_value",
    "missing_required_parameter",
    "integer_below_min_value",
    "integer_above_max_value",
    "invalid_parameter_combination",
    "unsupported_parameter",
    "context_length_exceeded",
    "template_error",
    "previous_response_not_found",
    "not_found",
    "model_not_found",
    "method_not_allowed",
    "unsupported_media_type",
    "request_timeout",
    "request_too_large",
    "invalid_api_key",
    "rate_limit_exceeded",
    "queue_timeout",
    "unavailable",
    "deadline_exceeded",
    "engine_failure",
]
"""The words of the `reason` label of `plimsoll_refusals_total`, so a bounded set."""

BudgetCause = Literal["prompt", "request", "limit"]
"""Which part of the budget law refused: the prompt alone, prompt + asked output, or the hard limit. The dialects have
sentences of their own for each, which real clients match on."""

NO_NUMBERS: Mapping[str, int | None] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not served: a stable code, a sentence for people, the parameter under its wire name.

    `numbers` stands as fields inside the error body: for budgets `prompt_tokens`, `requested_output_tokens`,
    `max_output_limit`, `context_length`. `budget_cause` is set by the budget law alone,
    `wait_estimate_seconds` where a place or time was wanting.
    """

    code: RefusalCode
    message: str
    param: str | None = None
    numbers: Mapping[str, int | None] = field(default_factory=lambda: NO_NUMBERS)
    retry_after_seconds: int | None = None
    wait_estimate_seconds: int | None = None
    allow: str | None = None
    budget_cause: BudgetCause | None = None
