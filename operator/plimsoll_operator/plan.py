"""`plan(server, desired, observed)`: which writes make what is observed into what is desired. Pure.

Owns the difference. In: the objects of `desired`, and a snapshot. Out: a `Plan`, which `cluster` carries out with
server-side apply under one field manager. It knows no client and no clock. Invariants: a plan carried out leaves an
empty plan; the order of what was observed changes nothing; nothing is deleted or overwritten that this server's
operator did not make (controller owner reference with the server's uid).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll_operator.observed import ObjectRef, Observed
from plimsoll_operator.spec import InferenceServer


@dataclass(frozen=True, slots=True)
class LabelChange:
    """Set a pod's label, or take it away when `value` is None (JSON merge patch)."""

    ref: ObjectRef
    label: str
    value: str | None


@dataclass(frozen=True, slots=True)
class Finding:
    """Why something is not done: a reason of names.py and a sentence, for the conditions."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Writes in the order in which they are to be made: `apply` first, whole objects; then labels; then deletions."""

    apply: tuple[dict[str, Any], ...] = ()
    label_changes: tuple[LabelChange, ...] = ()
    delete: tuple[ObjectRef, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be written; findings are no writes."""
        return not (self.apply or self.label_changes or self.delete)


def plan(server: InferenceServer, desired: Sequence[dict[str, Any]], observed: Observed) -> Plan:
    """The writes that are due. A server that is being deleted gets none: its children go with it."""
    raise NotImplementedError
