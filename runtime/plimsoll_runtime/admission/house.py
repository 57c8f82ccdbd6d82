"""Who is let into the house, who is sent away, and when to come back.

Owns one count of places, and the use of the wait estimate. A request takes a place before its prompt is templated and
tokenized, and gives it back when it ends, is refused, or its client leaves. Requests are counted, not the sequences of
`n`. It is refused when there is no place, or when even the soonest start would be too late for it: then waiting would
only be time lost. It knows nothing of tokens.
"""

import math
from collections.abc import Callable

from plimsoll_runtime.admission.answer_lengths import AnswerLengths
from plimsoll_runtime.admission.deadlines import Times
from plimsoll_runtime.admission.wait_estimate import Inside, SlotRules, WaitEstimate, estimate_wait
from plimsoll_runtime.contract.config import field_names
from plimsoll_runtime.refusal import Refusal

RETRY_AFTER_MAX_SECONDS = 60
"""The SDKs obey up to this; anthropic's waits less than it is told beyond."""
FRESH_SECONDS = 0.25
"""An estimate is used again for so long, so that a storm of requests does not cost one each."""


class House:
    """Places for `running_slots + max_waiting` requests. Used from the event loop's thread alone."""

    def __init__(
        self,
        rules: SlotRules,
        max_waiting: int,
        weight_of: Callable[[str], int],
    ) -> None:
        """`weight_of` gives a tenant's share against others."""
        self._rules = rules
        self._places = rules.running_slots + max_waiting
        self._weight_of = weight_of
        self._inside = 0
        self._estimates: dict[str, tuple[float, WaitEstimate | None]] = {}
        self.lengths = AnswerLengths()

    @property
    def inside(self) -> int:
        """Requests that hold a place now."""
        return self._inside

    def enter(self, load: Inside, tenant: str, times: Times) -> Refusal | None:
        """Takes a place at `times.arrival`, or says why not. `load` is what the engine has now."""
        if self._inside >= self._places:
            waiting = self._inside - self._rules.running_slots
            return self._refusal(
                f"{self._inside} requests are in the house, {waiting} of them waiting: try again later, or raise "
                f"{field_names('max_waiting')} on the server",
                self._estimate(load, tenant, times.arrival),
                times,
            )
        if self._inside >= self._rules.running_slots:
            estimate = self._estimate(load, tenant, times.arrival)
            if estimate is not None and estimate.soonest > times.start_by - times.arrival:
                return self._refusal(_too_long(estimate, times), estimate, times)
        self._inside += 1
        return None

    def leave(self) -> None:
        """Gives the place back."""
        assert self._inside > 0, "a place was given back twice"
        self._inside -= 1

    def too_late(self, load: Inside, tenant: str, times: Times, now: float) -> Refusal:
        """For a request that waited in vain."""
        refusal = self._refusal(
            f"no running slot became free in {now - times.arrival:.3g} s: try again later, or {times.start_limit}",
            self._estimate(load, tenant, now),
            times,
        )
        return Refusal(
            code="queue_timeout",
            message=refusal.message,
            retry_after_seconds=refusal.retry_after_seconds,
            wait_estimate_seconds=refusal.wait_estimate_seconds,
        )

    def _estimate(self, load: Inside, tenant: str, now: float) -> WaitEstimate | None:
        self._estimates = {name: known for name, known in self._estimates.items() if now - known[0] < FRESH_SECONDS}
        if tenant not in self._estimates:
            estimate = estimate_wait(load, self.lengths, self._rules, tenant, self._weight_of)
            self._estimates[tenant] = (now, estimate)
        return self._estimates[tenant][1]

    def _refusal(self, message: str, estimate: WaitEstimate | None, times: Times) -> Refusal:
        return Refusal(
            code="rate_limit_exceeded",
            message=message,
            retry_after_seconds=None if estimate is None else _retry_after_seconds(estimate, times),
            wait_estimate_seconds=None if estimate is None else math.ceil(estimate.likely),
        )


def _too_long(estimate: WaitEstimate, times: Times) -> str:
    return (
        f"a running slot is {estimate.soonest:.0f} s away at best, and this request waits at most "
        f"{times.start_by - times.arrival:.3g} s: try again later, or {times.start_limit}"
    )


def _retry_after_seconds(estimate: WaitEstimate, times: Times) -> int:
    """When there should be a place, and the wait from then on be short enough: whole seconds, 1..60."""
    seconds = max(estimate.place, estimate.likely - (times.start_by - times.arrival))
    return max(1, min(RETRY_AFTER_MAX_SECONDS, math.ceil(seconds)))
