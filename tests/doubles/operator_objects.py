"""Objects of a cluster for tests of the operator's mind: servers, pods, and an API server that only remembers.

`ApiServer` does to what is applied what the real one does to it: it completes (uid, generation, defaults), spells
amounts its own way and leaves out what is false or empty. It checks nothing.
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from plimsoll_operator import names
from plimsoll_operator.desired import OperatorSettings, desired
from plimsoll_operator.observed import BudgetReading, Observed
from plimsoll_operator.plan import Plan, plan
from plimsoll_operator.spec import InferenceServer, config_hash, read_live
from plimsoll_runtime.contract.quantity import amount

SETTINGS = OperatorSettings(runtime_image="example/runtime:1")
UID = "uid-of-the-server"


def server(spec: Mapping[str, Any] | None = None, **metadata: Any) -> InferenceServer:
    """A live server named tiny; `spec` is laid over the smallest one."""
    return read_live(
        {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": "tiny", "namespace": "here", "uid": UID, "generation": 3, **metadata},
            "spec": {"model": {"source": "file:///models/tiny"}, **(spec or {})},
        }
    )


def pod(
    name: str,
    revision: str,
    *,
    ready: bool = True,
    state: Mapping[str, Any] | None = None,
    last_state: Mapping[str, Any] | None = None,
    container: str = names.CONTAINER,
    unschedulable: str = "",
    routable: str | None = names.ROUTABLE,
) -> dict[str, Any]:
    """A pod of the server tiny, as the kubelet reports it."""
    labels = names.child_labels("tiny") | ({} if routable is None else {names.LABEL_ROUTABLE: routable})
    status: dict[str, Any] = {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
    if unschedulable:
        scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": unschedulable}
        status["conditions"].append(scheduled)
    else:
        group = "initContainerStatuses" if container == names.FETCH_CONTAINER else "containerStatuses"
        reported = {"name": container, "image": "example/runtime:1", "ready": ready, "restartCount": 0}
        status[group] = [{**reported, "state": state or {"running": {}}, "lastState": last_state or {}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "here",
            "uid": f"uid-of-{name}",
            "labels": labels,
            "annotations": {names.ANNOTATION_CONFIG_HASH: revision},
        },
        "spec": {"nodeName": "node-1"},
        "status": status,
    }


def ended(message: str, exit_code: int = 1, reason: str = "Error") -> dict[str, Any]:
    """The state of a container that is over."""
    return {"terminated": {"exitCode": exit_code, "reason": reason, "message": message}}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


BODY: Mapping[str, Any] = {
    "model": "tiny",
    "context_length": 2048,
    "max_output_default": 512,
    "max_output_limit": 1024,
    "over_budget": "clamp",
    "running_slots": 4,
    "kv_capacity_tokens": 8192,
}


def reading(**changes: Any) -> BudgetReading:
    """What a healthy replica's `/budget` says, with changes."""
    return BudgetReading({**BODY, **changes})


@dataclass(slots=True)
class ApiServer:
    """Objects by kind and name, and how many writes made them."""

    objects: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    num_writes: int = 0

    def carry_out(self, planned: Plan) -> None:
        for wanted in planned.apply:
            self.apply(wanted)
        for ref in planned.delete:
            del self.objects[ref.kind, ref.name]
            self.num_writes += 1

    def apply(self, wanted: Mapping[str, Any]) -> None:
        """Fields of the former object that are not in the new one are gone; the status stays."""
        key = (wanted["kind"], wanted["metadata"]["name"])
        before = self.objects.get(key)
        live = _completed(copy.deepcopy(dict(wanted)))
        live["metadata"] |= {"uid": f"uid-of-{key[0]}-{key[1]}", "resourceVersion": str(self.num_writes)}
        generation = 1 if before is None else before["metadata"]["generation"]
        changed = before is not None and before.get("spec") != live.get("spec")
        live["metadata"]["generation"] = generation + changed
        if before is not None and "status" in before:
            live["status"] = before["status"]
        self.objects[key] = live
        self.num_writes += 1

    def observed(self, **seen: Any) -> Observed:
        return Observed(children=tuple(copy.deepcopy(list(self.objects.values()))), **seen)

    def reconcile(self, seen_server: InferenceServer, settings: OperatorSettings = SETTINGS, **seen: Any) -> Plan:
        """One round: plan from what is here now, and carry it out."""
        planned = plan(seen_server, desired(seen_server, settings), self.observed(**seen))
        self.carry_out(planned)
        return planned

    @property
    def deployment(self) -> dict[str, Any]:
        return self.objects["Deployment", "tiny"]

    def report(
        self,
        *,
        replicas: int,
        ready: int,
        updated: int | None = None,
        conditions: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    ) -> None:
        """The Deployment's controller writes its status."""
        self.deployment["status"] = {
            "observedGeneration": self.deployment["metadata"]["generation"],
            "replicas": replicas,
            "readyReplicas": ready,
            "updatedReplicas": replicas if updated is None else updated,
            "conditions": [{"type": kind, **condition} for kind, condition in conditions.items()],
        }


def settled(seen_server: InferenceServer, **budgets: BudgetReading) -> tuple[ApiServer, Observed]:
    """A server that is rolled out, with a ready pod a, b, ... for each replica, and a reading each unless given."""
    cluster = ApiServer()
    cluster.reconcile(seen_server)
    pods = tuple(pod(name, config_hash(seen_server)) for name in "abcdefgh"[: seen_server.replicas])
    cluster.report(replicas=len(pods), ready=len(pods))
    readings = budgets or {name_of_pod(each): reading() for each in pods}
    cluster.reconcile(seen_server, pods=pods, budgets=readings)
    cluster.report(replicas=len(pods), ready=len(pods))
    return cluster, cluster.observed(pods=pods, budgets=readings)


def name_of_pod(each: Mapping[str, Any]) -> str:
    return str(each["metadata"]["name"])


def names_of(objects: Iterable[Mapping[str, Any]]) -> list[str]:
    """`Kind/name` of each object."""
    return [f"{each['kind']}/{each['metadata']['name']}" for each in objects]


def _completed(value: Any, holds_amounts: bool = False) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _completed(below, holds_amounts or key in ("requests", "limits", "emptyDir"))
            for key, below in value.items()
            if below is not False or key in ("automountServiceAccountToken", "enableServiceLinks", "optional")
        }
    if isinstance(value, list | tuple):
        return [_completed(below) for below in value]
    exact = amount(value) if holds_amounts else None
    return value if exact is None else _spelled(exact)


def _spelled(exact: Fraction) -> str:
    """As the API server spells it: whole units, binary suffixes where they fit."""
    for suffix, factor in (("Gi", 2**30), ("Mi", 2**20)):
        if exact and exact % factor == 0:
            return f"{exact // factor}{suffix}"
    return str(exact) if exact.denominator == 1 else f"{int(exact * 1000)}m"
