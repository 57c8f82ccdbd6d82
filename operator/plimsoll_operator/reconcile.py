"""`Reconciler.reconcile(namespace, name)`: observe, plan, carry out, tell. The one thing that every trigger calls.

Owns that order and what a failure of each step means. In: a name. Out: an `Outcome`, which says when to look again.
It keeps nothing between calls but readings of replicas. Invariants: a second call in the same state writes nothing; a
server or namespace that is gone or going is quiet; one object that is refused does not keep the others from being
written, nor the status from saying so.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from plimsoll_operator import names
from plimsoll_operator.cluster import EVENT, SERVER, ApiFault, Cluster, Json
from plimsoll_operator.desired import OperatorSettings, desired
from plimsoll_operator.observed import ApplyFault, Observed, ref_of
from plimsoll_operator.plan import Plan, plan
from plimsoll_operator.replica_readings import ReplicaReadings
from plimsoll_operator.snapshot import observe
from plimsoll_operator.spec import InferenceServer, ManifestError, read_live
from plimsoll_operator.status import StatusEvent, invalid_status, status, transitions

MAX_EVENT_MESSAGE: Final = 1024
LOGGER: Final = logging.getLogger("plimsoll.reconcile")


class Outcome(StrEnum):
    """What a reconcile came to."""

    SETTLED = "settled"  # nothing was to be written
    WRITTEN = "written"
    BLOCKED = "blocked"  # the API server or another object stands in the way: worth looking again
    INVALID = "invalid"  # the object cannot be read as a server
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Has no state of its own; different servers may be reconciled by different threads."""

    cluster: Cluster
    readings: ReplicaReadings
    settings: OperatorSettings

    def reconcile(self, namespace: str, name: str) -> Outcome:
        """Make it so, as far as it can be now. Raises ApiFault where trying again may help."""
        try:
            live = self.cluster.read(SERVER, namespace, name)
            if live is None or live["metadata"].get("deletionTimestamp") is not None:
                self.readings.forget((namespace, name))
                return Outcome.GONE
            return self._reconcile(live)
        except ApiFault as fault:
            if fault.is_namespace_ending or fault.is_absence:
                LOGGER.info("%s/%s is going: %s", namespace, name, fault)
                return Outcome.GONE
            raise

    def _reconcile(self, live: Json) -> Outcome:
        try:
            server = read_live(live)
            wanted = desired(server, self.settings)
        except ManifestError as error:
            before = live.get("status") or {}
            told = invalid_status(live["metadata"]["generation"], str(error), before, _now())
            self._tell(live, before, told)
            return Outcome.INVALID
        observed = observe(self.cluster, self.readings, server, wanted, live)
        planned = plan(server, wanted, observed)
        faults = self._carry_out(planned, observed)
        told = self._told(server, replace(observed, apply_faults=faults), planned)
        was_told = self._tell(live, observed.previous_status, told)
        if faults or planned.findings:
            return Outcome.BLOCKED
        return Outcome.SETTLED if planned.is_empty and not was_told else Outcome.WRITTEN

    def _told(self, server: InferenceServer, observed: Observed, planned: Plan) -> dict[str, Any]:
        return status(server, observed, planned, _now())

    def _carry_out(self, planned: Plan, observed: Observed) -> tuple[ApplyFault, ...]:
        faults = []
        for wanted in planned.apply:
            try:
                self.cluster.apply(wanted, _uid_of(wanted, observed))
                LOGGER.info("applied %s %s/%s", wanted["kind"], *_place(wanted))
            except ApiFault as fault:
                if fault.is_namespace_ending or not fault.is_refusal:
                    raise
                faults.append(ApplyFault(ref_of(wanted), str(fault)))
        for change in planned.label_changes:
            self.cluster.set_label(change.ref, change.label, change.value)
            LOGGER.info("pod %s/%s: %s is %s", change.ref.namespace, change.ref.name, change.label, change.value)
        for ref in planned.delete:
            self.cluster.delete(ref)
            LOGGER.info("deleted %s %s/%s", ref.kind, ref.namespace, ref.name)
        return tuple(faults)

    def _tell(self, live: Json, before: Mapping[str, Any], told: Mapping[str, Any]) -> bool:
        """Write the status where it changed, and an event for each transition."""
        if told == before:
            return False
        self.cluster.write_status(live, told)
        self._post(live, transitions(before, told))
        return True

    def _post(self, live: Json, events: Sequence[StatusEvent]) -> None:
        """An event that cannot be written is only logged: the condition says the same."""
        for event in events:
            LOGGER.info("%s/%s %s: %s", live["metadata"]["namespace"], live["metadata"]["name"], *_words(event))
            try:
                self.cluster.create(EVENT, _event_object(live, event, _now()))
            except ApiFault as fault:
                level = logging.INFO if fault.is_namespace_ending else logging.WARNING
                LOGGER.log(level, "the event %s could not be written: %s", event.reason, fault)


def _uid_of(wanted: Mapping[str, Any], observed: Observed) -> str | None:
    live = observed.child(wanted["kind"], wanted["metadata"]["name"])
    return None if live is None else str(live["metadata"]["uid"])


def _place(document: Mapping[str, Any]) -> tuple[str, str]:
    return document["metadata"]["namespace"], document["metadata"]["name"]


def _words(event: StatusEvent) -> tuple[str, str]:
    return event.reason, event.message


def _now() -> datetime:
    return datetime.now(UTC)


def _event_object(live: Json, event: StatusEvent, now: datetime) -> Json:
    metadata = live["metadata"]
    at = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    about = {"apiVersion": names.API_VERSION, "kind": names.KIND}
    about |= {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion")}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
        "involvedObject": about,
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:MAX_EVENT_MESSAGE],
        "source": {"component": names.MANAGED_BY},
        "reportingComponent": names.MANAGED_BY,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
