"""What was seen of one server: a frozen snapshot, made of plain dictionaries as the API server sends them.

Owns the shape of what the mind is told. In: objects read by `cluster`. Out: `Observed`, for `plan` and `status`. It
reads nothing itself. Invariants: nothing here is changed after it is made; what could not be read is absent and never
an empty value (`budgets` has no entry for a pod that was not asked, and a reading with a `fault` for one that did not
answer).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

Document = Mapping[str, Any]
"""A Kubernetes object as parsed JSON."""

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, order=True)
class ObjectRef:
    """Which object is meant; `uid` keeps a deletion from hitting a later object of the same name."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str = ""


@dataclass(frozen=True, slots=True)
class BudgetReading:
    """What one pod's `/budget` said (its JSON body), or in `fault` one phrase for why it could not be read."""

    body: Mapping[str, Any] | None = None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """A pod's counters at `at` (seconds of a steady clock): requests ended, and refusals by reason, over all routes."""

    at: float
    ended: int
    refused: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ApplyFault:
    """The API server refused to write `ref`: its own sentence."""

    ref: ObjectRef
    message: str


@dataclass(frozen=True, slots=True)
class Observed:
    """One server's surroundings at one moment.

    children: live objects of the kinds in CHILD_KINDS that carry the server's label, and every live object, whoever
      made it, that has a name this server wants (so that a foreign one is noticed).
    pods: pods that carry the server's label, terminating ones too.
    events: Warning events about these pods and about the server's PersistentVolumeClaim, at most some minutes old.
    budgets: by pod name, of running pods that were asked.
    request_counts: by pod name, readings of the last minutes, oldest first.
    apply_faults: what the API server refused in this very reconcile.
    previous_status: the server's status as it was read; empty before the first.
    """

    children: tuple[Document, ...] = ()
    pods: tuple[Document, ...] = ()
    events: tuple[Document, ...] = ()
    budgets: Mapping[str, BudgetReading] = field(default_factory=lambda: NOTHING)
    request_counts: Mapping[str, tuple[RequestCounts, ...]] = field(default_factory=lambda: NOTHING)
    apply_faults: tuple[ApplyFault, ...] = ()
    previous_status: Mapping[str, Any] = field(default_factory=lambda: NOTHING)

    def child(self, kind: str, name: str) -> Document | None:
        """The live child of this kind and name, or None."""
        return next((each for each in self.children if each["kind"] == kind and name_of(each) == name), None)


def ref_of(document: Document) -> ObjectRef:
    """The reference to a live object."""
    metadata = document["metadata"]
    return ObjectRef(
        document["apiVersion"],
        document["kind"],
        metadata.get("namespace", ""),
        metadata["name"],
        metadata.get("uid", ""),
    )


def name_of(document: Document) -> str:
    return str(document["metadata"]["name"])


def label_of(document: Document, key: str) -> str | None:
    value: str | None = (document["metadata"].get("labels") or {}).get(key)
    return value


def annotation_of(document: Document, key: str) -> str | None:
    value: str | None = (document["metadata"].get("annotations") or {}).get(key)
    return value


def controller_uid(document: Document) -> str | None:
    """The uid of the object that controls this one, or None when nothing does."""
    owners = document["metadata"].get("ownerReferences") or ()
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), None)


def is_terminating(document: Document) -> bool:
    return document["metadata"].get("deletionTimestamp") is not None


def is_pod_ready(pod: Document) -> bool:
    """Ready in the eyes of the kubelet, and not on its way out."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and not is_terminating(pod)
