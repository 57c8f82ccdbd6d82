"""`status(server, observed, plan, now)`: what the API server shows of a server, and the events of its changes. Pure.

Owns conditions, budgets and counts in `status`. In: the server, a snapshot of its surroundings, and the findings of the
plan made from that same snapshot. Out: the whole `status` as it is to be written, and what deserves an event. It reads
no clock: `now` comes in. Invariants: the same facts give the same status, so that a write is due only when
`status(...) != observed.previous_status`; `lastTransitionTime` moves only with a condition's status.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from plimsoll_operator import names
from plimsoll_operator.budgets import Replica, all_refused, declared, effective, judge_replicas
from plimsoll_operator.checks import (
    Facts,
    Verdict,
    api_server_refuses,
    budget_is_unread,
    budgets_differ,
    first_fault,
    is_scaled_to_zero,
    is_suspended,
    replicas_are_starting,
    rollout_is_stalled,
    rollout_is_under_way,
    runtime_rejects_configuration,
    something_is_in_the_way,
)
from plimsoll_operator.observed import Observed, is_pod_ready, label_of
from plimsoll_operator.plan import Plan
from plimsoll_operator.revisions import choose
from plimsoll_operator.spec import InferenceServer, config_hash
from plimsoll_runtime.contract.endpoints import DEFAULT_PORT

MAX_REPLICA_BUDGETS: Final = 64
MAX_MESSAGE: Final = 4096
TOLD: Final = frozenset({names.CONDITION_READY, names.CONDITION_ACCEPTED, names.CONDITION_BUDGET_CONSISTENT})
"""Conditions whose changes are events; the others follow from them."""
QUIET: Final = frozenset(
    {
        names.REASON_STARTING,
        names.REASON_AWAITING_MODEL,
        names.REASON_BUDGET_UNREAD,
        names.REASON_NO_REPLICA,
        names.REASON_CONSISTENT,
    }
)
"""Reasons that every server passes through, and pods that come and go."""
FAULTS: Final = frozenset(
    {
        names.REASON_INVALID_SPEC,
        names.REASON_NAME_TAKEN,
        names.REASON_APPLY_REFUSED,
        names.REASON_CONFIGURATION_REJECTED,
        names.REASON_POD_CREATION_REFUSED,
        names.REASON_IMAGE_PULL_FAILED,
        names.REASON_CONTAINER_CONFIG_FAILED,
        names.REASON_FETCH_FAILED,
        names.REASON_CRASH_LOOP,
        names.REASON_UNSCHEDULABLE,
        names.REASON_VOLUME_FAILED,
        names.REASON_PROGRESS_DEADLINE,
        names.REASON_BUDGET_DRIFT,
    }
)


@dataclass(frozen=True, slots=True)
class StatusEvent:
    """A Kubernetes event about the InferenceServer."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def status(server: InferenceServer, observed: Observed, plan: Plan, now: datetime) -> dict[str, Any]:
    """The whole status. `observed` may carry apply_faults of carrying `plan` out."""
    facts = _facts(server, observed, plan)
    generation = 1 if server.metadata.generation is None else server.metadata.generation
    verdicts = {
        names.CONDITION_READY: first_fault(facts) or Verdict("True", names.REASON_READY, _all_ready(facts)),
        names.CONDITION_ACCEPTED: _accepted(facts),
        names.CONDITION_AVAILABLE: _available(facts),
        names.CONDITION_PROGRESSING: _progressing(facts),
        names.CONDITION_BUDGET_CONSISTENT: _budget_consistent(facts),
    }
    content: dict[str, Any] = {
        "observedGeneration": generation,
        "replicas": facts.count("replicas"),
        "readyReplicas": facts.count("readyReplicas"),
        "updatedReplicas": facts.count("updatedReplicas") if facts.is_deployment_current else 0,
        "selector": ",".join(f"{key}={value}" for key, value in names.selector_labels(server.name).items()),
        "endpoint": names.endpoint(server.name, server.namespace, DEFAULT_PORT),
        "budget": {"declared": declared(server)},
        "replicaBudgets": [_replica_budget(replica) for replica in facts.replicas[:MAX_REPLICA_BUDGETS]],
        "conditions": _conditions(verdicts, generation, observed.previous_status, now),
    }
    limits = effective(facts.replicas)
    if limits:  # an object that is applied empty in place of one with fields becomes null, which the API server refuses
        content["budget"]["effective"] = limits
    refused = all_refused(observed)
    if refused is not None:
        content["refusals"] = {"reason": refused.reason, "requests": refused.requests}
    return content


def invalid_status(generation: int, message: str, previous: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """The status of a stored object that cannot be read as a server (ManifestError), which keeps what it had."""
    verdict = Verdict("False", names.REASON_INVALID_SPEC, message)
    verdicts = {names.CONDITION_READY: verdict, names.CONDITION_ACCEPTED: verdict}
    kept = [each for each in previous.get("conditions", ()) if each["type"] not in verdicts]
    conditions = _conditions(verdicts, generation, previous, now)
    return {**previous, "observedGeneration": generation, "conditions": [*conditions, *kept]}


def transitions(previous: Mapping[str, Any], current: Mapping[str, Any]) -> tuple[StatusEvent, ...]:
    """What changed between two statuses and is worth an event; nothing when nothing did."""
    before, events = _by_type(previous), []
    for condition in current["conditions"]:
        old = before.get(condition["type"], {})
        same = (old.get("status"), old.get("reason")) == (condition["status"], condition["reason"])
        is_fault = condition["reason"] in FAULTS
        is_beginning = not old and not is_fault  # a new server has not changed
        if condition["type"] in TOLD and not same and not is_beginning and condition["reason"] not in QUIET:
            events.append(StatusEvent("Warning" if is_fault else "Normal", condition["reason"], condition["message"]))
    events += _refusal_events(previous.get("refusals"), current.get("refusals"))
    return tuple(dict.fromkeys(events))


def _facts(server: InferenceServer, observed: Observed, plan: Plan) -> Facts:
    deployment = observed.child("Deployment", server.name)
    return Facts(
        server=server,
        observed=observed,
        plan=plan,
        revision=config_hash(server),
        choice=choose(_hash_alone(config_hash(server)), deployment, observed.pods),
        deployment=deployment,
        replicas=judge_replicas(server, observed),
    )


def _hash_alone(revision: str) -> dict[str, Any]:
    """A template that says no more than its hash: enough to learn what became of it."""
    return {"metadata": {"annotations": {names.ANNOTATION_CONFIG_HASH: revision}}}


def _accepted(facts: Facts) -> Verdict:
    """Whether the spec can be run: only a model that was loaded with it can tell."""
    for check in (something_is_in_the_way, api_server_refuses, runtime_rejects_configuration):
        fault = check(facts)
        if fault is not None:
            return fault
    if facts.choice.accepted:
        return Verdict("True", names.REASON_ACCEPTED, "a replica has loaded the model with this configuration")
    message = "no replica has loaded the model with this configuration yet"
    return Verdict("Unknown", names.REASON_AWAITING_MODEL, message)


def _available(facts: Facts) -> Verdict:
    """Whether the Service reaches anybody, of whatever revision."""
    serving = [pod for pod in facts.observed.pods if is_pod_ready(pod) and label_of(pod, names.LABEL_ROUTABLE)]
    if serving:
        return Verdict("True", names.REASON_SERVING, f"{len(serving)} ready replicas behind the Service")
    stopped = is_suspended(facts) or is_scaled_to_zero(facts)
    return stopped or Verdict("False", names.REASON_NO_READY_REPLICA, "no ready replica behind the Service")


def _progressing(facts: Facts) -> Verdict:
    stopped = is_suspended(facts) or is_scaled_to_zero(facts)
    if stopped is not None:
        return stopped
    for check in (something_is_in_the_way, api_server_refuses, runtime_rejects_configuration, rollout_is_stalled):
        fault = check(facts)
        if fault is not None:
            return Verdict("False", names.REASON_STALLED, fault.message)
    moving = rollout_is_under_way(facts) or replicas_are_starting(facts)
    if moving is not None:
        return Verdict("True", moving.reason, moving.message)
    return Verdict("False", names.REASON_COMPLETE, "nothing is being replaced or started")


def _budget_consistent(facts: Facts) -> Verdict:
    if facts.num_wanted == 0:
        return Verdict("Unknown", names.REASON_NO_REPLICA, "no replica is wanted, so none can be compared")
    if facts.choice.rolled_back:
        message = "the replicas run the last accepted configuration, which this spec is not compared with"
        return Verdict("Unknown", names.REASON_CONFIGURATION_REJECTED, message)
    unsure = budgets_differ(facts) or budget_is_unread(facts)
    return unsure or Verdict("True", names.REASON_CONSISTENT, _all_consistent(facts))


def _all_ready(facts: Facts) -> str:
    if facts.num_wanted == 1:
        return "the replica serves this generation and grants what it declares"
    return f"all {facts.num_wanted} replicas serve this generation and grant what it declares"


def _all_consistent(facts: Facts) -> str:
    if facts.num_wanted == 1:
        return "the replica grants what the spec declares"
    return f"all {facts.num_wanted} replicas grant what the spec declares"


def _conditions(
    verdicts: Mapping[str, Verdict], generation: int, previous: Mapping[str, Any], now: datetime
) -> list[dict[str, Any]]:
    before = _by_type(previous)
    conditions = []
    for kind, verdict in verdicts.items():
        old = before.get(kind, {})
        same = old.get("status") == verdict.status and "lastTransitionTime" in old
        conditions.append(
            {
                "type": kind,
                "status": verdict.status,
                "reason": verdict.reason,
                "message": verdict.message[:MAX_MESSAGE],
                "observedGeneration": generation,
                "lastTransitionTime": old["lastTransitionTime"] if same else now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
        )
    return conditions


def _by_type(status_read: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {str(each["type"]): each for each in status_read.get("conditions", ())}


def _replica_budget(replica: Replica) -> dict[str, Any]:
    entry: dict[str, Any] = {"pod": replica.pod, "node": replica.node, "revision": replica.revision, **replica.values}
    if replica.fault:
        return {**entry, "unread": replica.fault}
    if replica.is_current:
        entry["consistent"] = not replica.differences
    if replica.differences:
        entry["differences"] = [_difference(*difference) for difference in replica.differences]
    return entry


def _difference(field: str, wanted: Any, seen: Any) -> dict[str, Any]:
    values = {"field": field, "declared": wanted, "observed": seen}
    return {key: value for key, value in values.items() if value is not None}


def _refusal_events(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[StatusEvent]:
    if after is None or (before is not None and before["reason"] == after["reason"]):
        return []
    number = f"{after['requests']:,} requests" if after["requests"] != 1 else "1 request"
    message = f"nothing was answered in five minutes: {number} refused with {after['reason']}"
    return [StatusEvent("Warning", names.REASON_ALL_REQUESTS_REFUSED, message)]
