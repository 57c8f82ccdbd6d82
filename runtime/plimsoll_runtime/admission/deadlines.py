"""By when a request must have a slot, and by when it must be done: the server's patience, and its client's.

Owns the arithmetic of deadlines. In: the server's `Patience`, what the client said of its own, and the time of arrival.
Out: `Times`. It knows no headers' syntax (checks.py reads it) and no queue. Invariants: a client that says when it
hangs up is answered before that; a hint only ever shortens; a stream's silence hint bounds the wait for its first slot
alone, because from then on pings fill the silence.
"""

from dataclasses import dataclass

from plimsoll_runtime.admitted import DeadlineAction
from plimsoll_runtime.contract.config import field_names
from plimsoll_runtime.contract.endpoints import HEADER_REQUEST_TIMEOUT

MARGIN_SECONDS, MARGIN_SHARE = 2.0, 0.025
"""An answer is sent so long before its client hangs up, whichever is more; never more than half of a short patience."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that a request may wait for a slot, and live in all; `action` is what becomes of it then."""

    queue_seconds: float
    request_seconds: float
    honours_client: bool = True
    action: DeadlineAction = "finish"


@dataclass(frozen=True, slots=True)
class ClientPatience:
    """Seconds after which the client hangs up: in all, or without hearing anything. None: it did not say."""

    total_seconds: float | None = None
    silence_seconds: float | None = None


NOT_SAID = ClientPatience()


@dataclass(frozen=True, slots=True)
class Times:
    """Times of one request in seconds of the engine's clock. `start_limit` names what decided `start_by`, for people.

    `silence_seconds` is how long its stream may say nothing, None where the client did not say.
    """

    arrival: float
    start_by: float
    finish_by: float
    start_limit: str
    silence_seconds: float | None = None


def decide_times(patience: Patience, client: ClientPatience, *, streams: bool, arrival: float) -> Times:
    """Both deadlines of a request that arrived at `arrival`."""
    heard = client if patience.honours_client else NOT_SAID
    said = [heard.total_seconds, heard.silence_seconds]
    usable = [before_hanging_up(seconds) for seconds in said if seconds is not None]
    ends = usable if not streams else usable[: 0 if heard.total_seconds is None else 1]
    slots = f"{field_names('queue_timeout')} or {field_names('running_slots')}"
    start_seconds, start_limit = min(
        (patience.queue_seconds, f"raise {slots} on the server"),
        (patience.request_seconds, f"raise {field_names('request_timeout')} on the server"),
        *((seconds, f"let the client wait longer ({HEADER_REQUEST_TIMEOUT})") for seconds in usable),
        key=lambda limit: limit[0],
    )
    finish_seconds = min([patience.request_seconds, *ends])
    return Times(
        arrival=arrival,
        start_by=arrival + start_seconds,
        finish_by=arrival + finish_seconds,
        start_limit=start_limit,
        silence_seconds=heard.silence_seconds,
    )


def before_hanging_up(seconds: float) -> float:
    """The part of a client's patience that may be used: the rest brings the answer to it."""
    return seconds - min(max(MARGIN_SECONDS, MARGIN_SHARE * seconds), seconds / 2)
