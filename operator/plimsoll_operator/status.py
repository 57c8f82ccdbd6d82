"""`status(server, observed, plan, now)`: what the API server shows of a server, and the events of its changes. Pure.

Owns conditions, budgets and counts in `status`. In: the server, a snapshot of its surroundings, and the findings of the
plan made from that same snapshot. Out: the whole `status` as it is to be written, and what deserves an event. It reads
no clock: `now` comes in. Invariants: the same facts give the same status, so that a write is due only when
`status(...) != observed.previous_status`; `lastTransitionTime` moves only with a condition's status.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from plimsoll_operator.observed import Observed
from plimsoll_operator.plan import Plan
from plimsoll_operator.spec import InferenceServer


@dataclass(frozen=True, slots=True)
class StatusEvent:
    """A Kubernetes event about the InferenceServer."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def status(server: InferenceServer, observed: Observed, plan: Plan, now: datetime) -> dict[str, Any]:
    """The whole status. `observed` may carry apply_faults of carrying `plan` out."""
    raise NotImplementedError


def invalid_status(generation: int, message: str, previous: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """The status of a stored object that cannot be read as a server (ManifestError), which keeps what it had."""
    raise NotImplementedError


def transitions(previous: Mapping[str, Any], current: Mapping[str, Any]) -> tuple[StatusEvent, ...]:
    """What changed between two statuses and is worth an event; nothing when nothing did."""
    raise NotImplementedError
