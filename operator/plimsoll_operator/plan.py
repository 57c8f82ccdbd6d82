"""`plan(server, desired, observed)`: which writes make what is observed into what is desired. Pure.

Owns the difference. In: the objects of `desired`, and a snapshot. Out: a `Plan`, which `cluster` carries out with
server-side apply under one field manager. It knows no client and no clock. Invariants: a plan carried out leaves an
empty plan; the order of what was observed changes nothing; nothing is deleted or overwritten that this server's
operator did not make (controller owner reference with the server's uid).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll_operator import names
from plimsoll_operator.budgets import Replica, judge_replicas
from plimsoll_operator.comparison import is_as_wanted, sealed
from plimsoll_operator.observed import (
    ObjectRef,
    Observed,
    controller_uid,
    is_terminating,
    label_of,
    name_of,
    ref_of,
)
from plimsoll_operator.revisions import choice_for
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
    """The writes that are due. A server that is being deleted gets none: its children go with it.

    Where a name is taken by somebody else, nothing at all is written until that is resolved: half a server, for
    example one without its NetworkPolicy, is worse than the former one.
    """
    if server.metadata.deletionTimestamp is not None:
        return Plan()
    findings = tuple(_foreign(server, wanted, observed) for wanted in desired)
    if any(findings):
        return Plan(findings=tuple(finding for finding in findings if finding is not None))
    wanted_objects = [sealed(_with_choice(wanted, observed)) for wanted in desired]
    return Plan(
        apply=tuple(wanted for wanted in wanted_objects if _is_due(wanted, observed)),
        label_changes=_label_changes(server, observed),
        delete=_deletions(server, wanted_objects, observed),
    )


def _foreign(server: InferenceServer, wanted: dict[str, Any], observed: Observed) -> Finding | None:
    """The reason to leave an object alone that has a child's name, or None when it is ours or absent."""
    live = observed.child(wanted["kind"], wanted["metadata"]["name"])
    if live is None or controller_uid(live) == server.metadata.uid:
        return None
    what = f"{wanted['kind']} {name_of(live)}"
    owners = live["metadata"].get("ownerReferences") or ()
    if any(owner.get("kind") == names.KIND and owner.get("name") == server.name for owner in owners):
        message = f"{what} belongs to a deleted InferenceServer of this name: it is being collected"
        return Finding(names.REASON_WAITING_FOR_COLLECTION, message)
    message = f"{what} exists and was not made for this server: delete it, or give the server another name"
    return Finding(names.REASON_NAME_TAKEN, message)


def _with_choice(wanted: dict[str, Any], observed: Observed) -> dict[str, Any]:
    """The Deployment with the template that it is to run and the record of it; any other object as it is."""
    if wanted["kind"] != "Deployment":
        return wanted
    chosen = choice_for(wanted["spec"]["template"], wanted["metadata"]["name"], observed)
    metadata = {**wanted["metadata"], "annotations": dict(chosen.annotations)}
    return {**wanted, "metadata": metadata, "spec": {**wanted["spec"], "template": chosen.template}}


def _is_due(wanted: dict[str, Any], observed: Observed) -> bool:
    live = observed.child(wanted["kind"], wanted["metadata"]["name"])
    return live is None or not is_as_wanted(live, wanted)


def _label_changes(server: InferenceServer, observed: Observed) -> tuple[LabelChange, ...]:
    """Pods that must leave the Service because their own limits are others, and pods that may come back."""
    replicas = {replica.pod: replica for replica in judge_replicas(server, observed)}
    changes = []
    for pod in sorted(observed.pods, key=name_of):
        label = label_of(pod, names.LABEL_ROUTABLE)
        wanted = _routable(server, replicas.get(name_of(pod)), label)
        if not is_terminating(pod) and label != wanted:
            changes.append(LabelChange(ref_of(pod), names.LABEL_ROUTABLE, wanted))
    return tuple(changes)


def _routable(server: InferenceServer, replica: Replica | None, label: str | None) -> str | None:
    """The label's value that a pod is to have; nothing is decided on a pod that was not read or is being replaced."""
    if server.spec.onBudgetDrift == "Warn":
        return names.ROUTABLE
    if replica is None or replica.fault or not replica.is_current:
        return label
    return None if replica.differences else names.ROUTABLE


def _deletions(
    server: InferenceServer, wanted_objects: Sequence[dict[str, Any]], observed: Observed
) -> tuple[ObjectRef, ...]:
    """Children that nothing wants any longer. A volume waits until neither template nor pod names it."""
    kept = {(wanted["kind"], wanted["metadata"]["name"]) for wanted in wanted_objects}
    claims = _claims_in_use(wanted_objects, observed)
    refs = []
    for live in observed.children:
        is_ours = server.metadata.uid is not None and controller_uid(live) == server.metadata.uid
        in_use = live["kind"] == "PersistentVolumeClaim" and name_of(live) in claims
        if is_ours and not in_use and not is_terminating(live) and (live["kind"], name_of(live)) not in kept:
            refs.append(ref_of(live))
    return tuple(sorted(refs))


def _claims_in_use(wanted_objects: Sequence[dict[str, Any]], observed: Observed) -> set[str]:
    pod_specs = [pod.get("spec") or {} for pod in observed.pods]
    pod_specs += [each["spec"]["template"]["spec"] for each in wanted_objects if each["kind"] == "Deployment"]
    claims = [volume.get("persistentVolumeClaim") for spec in pod_specs for volume in spec.get("volumes") or ()]
    return {claim["claimName"] for claim in claims if claim}
