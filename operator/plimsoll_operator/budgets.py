"""What replicas say of themselves, beside what was declared: budgets, drift, and refusals. Pure.

Owns the comparison. In: a server, and the readings of its pods (`/budget`, `/metrics`) in a snapshot. Out: one
`Replica` for each pod that runs, the limits that hold for all of them, and the reason why all requests were refused.
It asks nobody. Invariants: a value that was declared is compared with the declaration, one that was not with what most
replicas say; only pods of the revision that is wanted are compared, since an older one is another server; a replica
that could not be read is unread and never drifting.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from plimsoll_operator.observed import BudgetReading, Document, Observed, RequestCounts, is_terminating, name_of
from plimsoll_operator.revisions import revision_of
from plimsoll_operator.spec import InferenceServer, config_hash
from plimsoll_runtime.contract.endpoints import GENERATION_ROUTES
from plimsoll_runtime.contract.metrics import REFUSALS, REQUESTS

FIELDS: Final[Mapping[str, tuple[str, str | None]]] = {
    "contextLength": ("context_length", "contextLength"),
    "maxOutputDefault": ("max_output_default", "maxOutput.default"),
    "maxOutputLimit": ("max_output_limit", "maxOutput.limit"),
    "overBudget": ("over_budget", "overBudget"),
    "runningSlots": ("running_slots", "runningSlots"),
    "kvCapacityTokens": ("kv_capacity_tokens", "kvCache.maxTokens"),
    "expertSlots": ("offload.expert_slots", None),
}
"""Field of `status` -> (path in the body of `/budget`, path below `spec`, None where no spec can say it)."""

OF_THE_NODE: Final = frozenset({"kvCapacityTokens", "expertSlots"})
"""What a replica has of its node's memory: it may differ where it was not declared."""

WINDOW_SECONDS: Final = 300.0
ENOUGH_OF_WINDOW: Final = 0.9
"""Readings come at intervals, so the oldest one in the window is a little younger than the window."""

Difference = tuple[str, Any, Any]
"""(field, declared or what most replicas say, observed)."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One running pod. `values`: its own limits by field of `status`, absent where null; empty when unread."""

    pod: str
    node: str
    revision: str
    is_current: bool
    values: Mapping[str, Any] = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()
    fault: str = ""


def declared(server: InferenceServer) -> dict[str, Any]:
    """The limits of the spec by field of `status`; what is not set is absent."""
    values = {name: _at(server.spec, path) for name, (_, path) in FIELDS.items() if path is not None}
    return {name: _word(value) for name, value in values.items() if value is not None}


def judge_replicas(server: InferenceServer, observed: Observed) -> tuple[Replica, ...]:
    """Every pod with a reading, by name."""
    wanted = config_hash(server)
    read = [
        _replica(pod, observed.budgets[name_of(pod)], wanted)
        for pod in sorted(observed.pods, key=name_of)
        if name_of(pod) in observed.budgets and not is_terminating(pod)
    ]
    reference = _reference(declared(server), [each for each in read if each.is_current and not each.fault])
    return tuple(_compared(each, reference) for each in read)


def effective(replicas: Iterable[Replica]) -> dict[str, Any]:
    """What a client can rely on whichever replica answers: the smallest of each number, a word where all agree."""
    read = [each.values for each in replicas if not each.fault]
    limits: dict[str, Any] = {}
    for name in FIELDS:
        values = [each[name] for each in read if name in each]
        if not values:
            continue
        if isinstance(values[0], int):
            limits[name] = min(values)
        elif len(set(values)) == 1:
            limits[name] = values[0]
    return limits


@dataclass(frozen=True, slots=True)
class AllRefused:
    """Every request of the window was refused for this reason."""

    reason: str
    requests: int


def all_refused(observed: Observed) -> AllRefused | None:
    """Whether the last five minutes brought requests and nothing but refusals of one kind, over all replicas."""
    ended, refused, covered = 0, Counter[str](), False
    for readings in observed.request_counts.values():
        in_window = [each for each in readings if each.at >= readings[-1].at - WINDOW_SECONDS]
        first, last = in_window[0], in_window[-1]
        covered = covered or last.at - first.at >= WINDOW_SECONDS * ENOUGH_OF_WINDOW
        ended += _growth(first.ended, last.ended)
        for reason, count in last.refused.items():
            refused[reason] += _growth(first.refused.get(reason, 0), count)
    reasons = +refused
    if not covered or ended == 0 or len(reasons) != 1 or reasons.total() < ended:
        return None
    return AllRefused(next(iter(reasons)), ended)


def read_counts(metrics_text: str, at: float) -> RequestCounts:
    """The counters of the generation routes out of a pod's `/metrics` (Prometheus text format)."""
    ended, refused = 0, Counter[str]()
    for name, labels, value in _SAMPLE.findall(metrics_text):
        label = dict(_LABEL.findall(labels))
        if label.get("route") not in GENERATION_ROUTES:
            continue
        if name == REQUESTS.name:
            ended += int(float(value))
        elif name == REFUSALS.name:
            refused[label.get("reason", "")] += int(float(value))
    return RequestCounts(at, ended, dict(refused))


_SAMPLE: Final = re.compile(r"^(\w+)\{([^}]*)\} ([0-9.eE+-]+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


def _replica(pod: Document, reading: BudgetReading, wanted: str) -> Replica:
    revision = revision_of(pod) or ""
    node = str((pod.get("spec") or {}).get("nodeName", ""))
    body, fault = reading.body, reading.fault
    values: dict[str, Any] = {}
    if body is not None:
        given = {name: _in_body(body, path) for name, (path, _) in FIELDS.items()}
        values = {name: _word(value) for name, value in given.items() if value is not None}
        if not all(isinstance(value, int | str) for value in values.values()):
            values, fault = {}, "its /budget is not that of a Plimsoll runtime"
    return Replica(name_of(pod), node, revision, revision == wanted, values, fault=fault)


def _reference(declared_values: Mapping[str, Any], replicas: Sequence[Replica]) -> dict[str, Any]:
    """What each field must be: as declared, else what most replicas say (of equals the smallest)."""
    reference = dict(declared_values)
    for name in FIELDS.keys() - declared_values.keys() - OF_THE_NODE:
        counted = Counter(replica.values.get(name) for replica in replicas)
        if counted:
            reference[name] = min(counted, key=lambda value: (-counted[value], value is None, str(value).rjust(20)))
    return reference


def _compared(replica: Replica, reference: Mapping[str, Any]) -> Replica:
    if not replica.is_current or replica.fault:
        return replica
    differences = tuple(
        (name, reference[name], replica.values.get(name))
        for name in FIELDS
        if name in reference and replica.values.get(name) != reference[name]
    )
    return Replica(
        replica.pod, replica.node, replica.revision, replica.is_current, replica.values, differences, replica.fault
    )


def _growth(first: int, last: int) -> int:
    """Of a counter, which begins again at 0 with its process."""
    return last - first if last >= first else last


def _at(spec: Any, path: str) -> Any:
    for key in path.split("."):
        spec = getattr(spec, key)
    return spec


def _in_body(body: Any, path: str) -> Any:
    """None where the body has no such thing."""
    for key in path.split("."):
        body = body.get(key) if isinstance(body, dict) else None
    return body


def _word(value: Any) -> Any:
    """Words as they are written in a manifest: Clamp."""
    return value.capitalize() if isinstance(value, str) else value
