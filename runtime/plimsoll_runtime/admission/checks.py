"""Field checks that need neither tokens nor the model's text: types and bounds of every number a request may carry.

Owns the bounds. In: the raw `wire` values of a `GenerationRequest`. Out: `CheckedFields`, or the first `Refusal` for a
value out of bounds. It runs before a queue place is taken, so a bad request is a 400 even on a full server. It knows no
dialect: a value is judged alike whatever route brought it; only `logprobs` differs, because the two APIs define it
differently. NaN and infinities fail every bound.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll_runtime.admission.deadlines import NOT_SAID, ClientPatience
from plimsoll_runtime.contract.config import MAX_TOKEN_COUNT, OverBudget
from plimsoll_runtime.contract.endpoints import COMPLETIONS, HEADER_OVER_BUDGET, HEADER_REQUEST_TIMEOUT
from plimsoll_runtime.refusal import Refusal, RefusalCode
from plimsoll_runtime.request import ClientTimeouts, GenerationRequest, WireValue

MAX_CHOICES = 128
MAX_SEQUENCES = 512
"""Prompts x n of one request."""
MAX_STOPS = {"stop": 4, "stop_sequences": 64}
MAX_STOP_CHARACTERS = 65_536
"""Of all stop strings of a request together."""
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIASES = 1024
MAX_TOP_LOGPROBS = 20
MAX_COMPLETION_LOGPROBS = 5
MAX_TOP_K = 2**31 - 1
MAX_TIMEOUT_SECONDS = 86_400 * 7
_DECIMAL = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?", re.ASCII)
SEED_MIN, SEED_MAX = -(2**63), 2**63 - 1

_NUMBER_BOUNDS: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.01, 10.0),
}


@dataclass(frozen=True, slots=True)
class CheckedFields:
    """The numbers of a request, typed and within bounds; None where the request named none."""

    requested_output_tokens: int | None
    numbers: Mapping[str, float]
    top_k: int | None
    seed: int | None
    logit_bias: Mapping[int, float]
    stops: tuple[str, ...]
    stop_token_ids: frozenset[int]
    min_tokens: int
    ignore_eos: bool
    num_choices: int
    logprobs: int | None
    repetition_stop: bool = False
    reasoning_budget_tokens: int | None = None
    over_budget: OverBudget | None = None
    limit_param: str | None = None
    client: ClientPatience = NOT_SAID


class _OutOfBoundsError(Exception):
    def __init__(self, code: RefusalCode, message: str, param: str | None) -> None:
        super().__init__(message)
        self.refusal = Refusal(code=code, message=message, param=param)


def check_fields(request: GenerationRequest, num_tokens: int) -> CheckedFields | Refusal:
    """All field checks in a fixed order; `num_tokens` bounds token ids (padded embedding rows are not addressable)."""
    try:
        return _checked(request, num_tokens)
    except _OutOfBoundsError as wrong:
        return wrong.refusal


def _checked(request: GenerationRequest, num_tokens: int) -> CheckedFields:
    wire = request.wire
    limit = wire.get("requested_output_tokens")
    requested = None if limit is None else _integer(limit, 1, MAX_TOKEN_COUNT)
    num_choices = _num_choices(wire, len(request.prompts))
    min_tokens = _optional_integer(wire, "min_tokens", 0, MAX_TOKEN_COUNT)
    if min_tokens is not None and requested is not None and min_tokens > requested:
        raise _OutOfBoundsError(
            "invalid_value",
            f"min_tokens {min_tokens:,} exceeds {limit.param if limit else 'the limit'} {requested:,}: lower one",
            "min_tokens",
        )
    return CheckedFields(
        requested_output_tokens=requested,
        numbers={name: _number(wire[name], *_NUMBER_BOUNDS[name]) for name in _NUMBER_BOUNDS if name in wire},
        top_k=_optional_integer(wire, "top_k", -1, MAX_TOP_K),
        seed=_optional_integer(wire, "seed", SEED_MIN, SEED_MAX),
        logit_bias=_logit_bias(wire.get("logit_bias"), num_tokens),
        stops=_stops(wire.get("stop")),
        stop_token_ids=_stop_token_ids(wire.get("stop_token_ids"), num_tokens),
        min_tokens=0 if min_tokens is None else min_tokens,
        ignore_eos=_switch(wire.get("ignore_eos")),
        num_choices=num_choices,
        logprobs=_logprobs(request),
        repetition_stop=_switch(wire.get("repetition_stop")),
        reasoning_budget_tokens=_optional_integer(wire, "reasoning_budget_tokens", 1, MAX_TOKEN_COUNT),
        over_budget=_over_budget(request.over_budget),
        limit_param=None if limit is None else limit.param,
        client=_client_patience(request.timeouts),
    )


def _integer(wire: WireValue, low: int, high: int) -> int:
    """A JSON number whose value is whole: 8.0 is 8, true and "8" and 8.5 are not integers."""
    value = wire.value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _OutOfBoundsError(
            "invalid_type", f"{wire.param} must be an integer, not {_shown(wire.value)}", wire.param
        )
    if value < low:
        raise _OutOfBoundsError(
            "integer_below_min_value", f"{wire.param} is {_shown(value)}: the smallest value is {low}", wire.param
        )
    if value > high:
        raise _OutOfBoundsError(
            "integer_above_max_value", f"{wire.param} is {_shown(value)}: the largest value is {high}", wire.param
        )
    return value


def _optional_integer(wire: Mapping[str, WireValue], name: str, low: int, high: int) -> int | None:
    return _integer(wire[name], low, high) if name in wire else None


def _number(wire: WireValue, low: float, high: float) -> float:
    value = wire.value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _OutOfBoundsError("invalid_type", f"{wire.param} must be a number, not {_shown(value)}", wire.param)
    if not (low <= value <= high):  # NaN compares false with everything, so it ends here
        raise _OutOfBoundsError(
            "invalid_value", f"{wire.param} is {_shown(value)}: it must lie in {low:g}..{high:g}", wire.param
        )
    return float(value)


def _num_choices(wire: Mapping[str, WireValue], num_prompts: int) -> int:
    given = _optional_integer(wire, "n", 1, MAX_CHOICES)
    num_choices = 1 if given is None else given
    best_of = _optional_integer(wire, "best_of", 1, MAX_CHOICES)
    if best_of is not None and best_of != num_choices:
        raise _OutOfBoundsError(
            "unsupported_parameter",
            f"best_of {best_of} differs from n {num_choices}: this server returns every choice it computes",
            "best_of",
        )
    if num_prompts * num_choices > MAX_SEQUENCES:
        raise _OutOfBoundsError(
            "invalid_value",
            f"{num_prompts} prompts x n {num_choices} make more than {MAX_SEQUENCES} sequences: send fewer at once",
            "n" if num_choices > 1 else "prompt",
        )
    return num_choices


def _switch(wire: WireValue | None) -> bool:
    if wire is None:
        return False
    if not isinstance(wire.value, bool):
        raise _OutOfBoundsError("invalid_type", f"{wire.param} must be true or false", wire.param)
    return wire.value


def _logit_bias(wire: WireValue | None, num_tokens: int) -> dict[int, float]:
    if wire is None:
        return {}
    if not isinstance(wire.value, dict):
        raise _OutOfBoundsError("invalid_type", "logit_bias must be an object: token id -> bias", wire.param)
    if len(wire.value) > MAX_LOGIT_BIASES:
        raise _OutOfBoundsError("invalid_value", f"logit_bias has more than {MAX_LOGIT_BIASES} entries", wire.param)
    return {
        _token_id(key, num_tokens, wire.param): _number(WireValue(wire.param, bias), -100.0, 100.0)
        for key, bias in wire.value.items()
    }


def _token_id(key: Any, num_tokens: int, param: str) -> int:
    is_digits = isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 12
    token_id = int(key) if is_digits else key
    if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < num_tokens:
        raise _OutOfBoundsError(
            "invalid_value", f"{param}: {_shown(key)} is not a token id: they are 0..{num_tokens - 1}", param
        )
    return token_id


def _stop_token_ids(wire: WireValue | None, num_tokens: int) -> frozenset[int]:
    if wire is None:
        return frozenset()
    if not isinstance(wire.value, list) or len(wire.value) > MAX_STOP_TOKEN_IDS:
        raise _OutOfBoundsError(
            "invalid_type", f"{wire.param} must be a list of at most {MAX_STOP_TOKEN_IDS} token ids", wire.param
        )
    for token_id in wire.value:
        if isinstance(token_id, str):
            raise _OutOfBoundsError("invalid_type", f"{wire.param} must hold integers", wire.param)
    return frozenset(_token_id(token_id, num_tokens, wire.param) for token_id in wire.value)


def _stops(wire: WireValue | None) -> tuple[str, ...]:
    if wire is None:
        return ()
    stops = [wire.value] if isinstance(wire.value, str) else wire.value
    most = MAX_STOPS.get(wire.param, MAX_STOPS["stop"])
    if isinstance(stops, list) and len(stops) > most:
        raise _OutOfBoundsError("invalid_value", f"{wire.param} has {len(stops)} strings: at most {most}", wire.param)
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise _OutOfBoundsError("invalid_type", f"{wire.param} must be a string or a list of strings", wire.param)
    if "" in stops:
        raise _OutOfBoundsError(
            "invalid_value", f"{wire.param} has an empty string, which would stop at once", wire.param
        )
    num_characters = sum(map(len, stops))
    if num_characters > MAX_STOP_CHARACTERS:
        raise _OutOfBoundsError(
            "invalid_value",
            f"{wire.param} has {num_characters:,} characters in all: at most {MAX_STOP_CHARACTERS:,}",
            wire.param,
        )
    return tuple(dict.fromkeys(stops))


def _logprobs(request: GenerationRequest) -> int | None:
    """How many alternatives to report per token, or None for no report."""
    wire, top = request.wire.get("logprobs"), request.wire.get("top_logprobs")
    if request.route == COMPLETIONS:
        return None if wire is None else _integer(wire, 0, MAX_COMPLETION_LOGPROBS)
    wanted = _switch(wire)
    num_top = 0 if top is None else _integer(top, 0, MAX_TOP_LOGPROBS)
    if top is not None and num_top > 0 and not wanted:
        raise _OutOfBoundsError("invalid_parameter_combination", f"{top.param} needs logprobs: true", top.param)
    return num_top if wanted else None


def _over_budget(word: str | None) -> OverBudget | None:
    match None if word is None else word.lower():
        case None | "clamp" | "refuse" as known:
            return known
    message = f"{HEADER_OVER_BUDGET} must be clamp or refuse, not {_shown(word)}"
    raise _OutOfBoundsError("invalid_value", message, HEADER_OVER_BUDGET)


def _client_patience(timeouts: ClientTimeouts) -> ClientPatience:
    """Our own header is a wish and must be readable; what an SDK says of itself is taken where it means something."""
    total = None
    if timeouts.own is not None:
        total = _seconds(timeouts.own)
        if total is None:
            message = f"{HEADER_REQUEST_TIMEOUT} must be seconds above 0, up to {MAX_TIMEOUT_SECONDS:,}, not "
            raise _OutOfBoundsError("invalid_value", message + _shown(timeouts.own), HEADER_REQUEST_TIMEOUT)
    silences = [seconds for seconds in map(_seconds, timeouts.sdk) if seconds is not None]
    return ClientPatience(total_seconds=total, silence_seconds=min(silences, default=None))


def _seconds(text: str) -> float | None:
    """A decimal number of seconds within bounds, else None."""
    seconds = float(text) if _DECIMAL.fullmatch(text) else 0.0
    return seconds if 0 < seconds <= MAX_TIMEOUT_SECONDS else None


def _shown(value: Any) -> str:
    """A client's value in a message: short, printable, and valid JSON text around it whatever it was."""
    if isinstance(value, float) and not math.isfinite(value):
        return "not a finite number"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
