"""How many requests may be in the house: preparing, waiting or running.

Owns one count. A request takes a place before its prompt is templated and tokenized, and gives it back when it ends,
is refused, or its client leaves. Requests are counted, not the sequences of `n`. It knows nothing of tokens.
"""

import math

from plimsoll_runtime.contract.config import field_names
from plimsoll_runtime.refusal import Refusal

RETRY_AFTER_MAX_SECONDS = 60
_SMOOTHING = 0.2


class House:
    """Places for `running_slots + max_waiting` requests. Used from the event loop's thread alone."""

    def __init__(self, running_slots: int, max_waiting: int) -> None:
        self._running_slots = running_slots
        self._places = running_slots + max_waiting
        self._inside = 0
        self._typical_seconds = 1.0

    @property
    def inside(self) -> int:
        """Requests that hold a place now."""
        return self._inside

    def enter(self) -> Refusal | None:
        """Takes a place, or says why there is none."""
        if self._inside < self._places:
            self._inside += 1
            return None
        waiting = self._inside - self._running_slots
        return Refusal(
            code="rate_limit_exceeded",
            message=f"{self._inside} requests are in the house, {waiting} of them waiting: try again later, or raise "
            f"{field_names('max_waiting')} on the server",
            retry_after_seconds=self.retry_after_seconds(),
        )

    def leave(self, seconds: float) -> None:
        """Gives the place back after `seconds` in the house."""
        assert self._inside > 0, "a place was given back twice"
        self._inside -= 1
        self._typical_seconds += _SMOOTHING * (seconds - self._typical_seconds)

    def retry_after_seconds(self) -> int:
        """When a place should be free, from how long requests stayed lately: whole seconds, 1..60."""
        return max(1, min(RETRY_AFTER_MAX_SECONDS, math.ceil(self._typical_seconds / self._running_slots)))
