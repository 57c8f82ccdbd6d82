"""Why a server is not ready: named checks, asked one after the other; the first that speaks is the `Ready` condition.

Owns the order and the sentences. In: `Facts` about one server at one moment. Out: a `Verdict`, or None when nothing is
wrong. Pure. Each check is one sentence that is false of a healthy server. Invariant: a server is ready only when no
check speaks, so a new fault needs a new check and nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from plimsoll_operator import names
from plimsoll_operator.budgets import Replica
from plimsoll_operator.observed import ApplyFault, Document, Observed
from plimsoll_operator.plan import Plan
from plimsoll_operator.pod_troubles import pod_trouble
from plimsoll_operator.revisions import Choice, live_hash, revision_of
from plimsoll_operator.spec import InferenceServer

ConditionStatus = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A condition without its times."""

    status: ConditionStatus
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What the checks look at. `revision`: the config hash of the spec; `counts`: the Deployment's own numbers."""

    server: InferenceServer
    observed: Observed
    plan: Plan
    revision: str
    choice: Choice
    deployment: Document | None
    replicas: Sequence[Replica]

    @property
    def num_wanted(self) -> int:
        return 0 if self.server.spec.suspend else self.server.replicas

    def count(self, field: str) -> int:
        """A number of the Deployment's status, 0 where it does not say."""
        return int(((self.deployment or {}).get("status") or {}).get(field) or 0)

    def deployment_condition(self, kind: str) -> Mapping[str, Any]:
        conditions = ((self.deployment or {}).get("status") or {}).get("conditions") or ()
        return next((each for each in conditions if each["type"] == kind), {})

    @property
    def is_deployment_current(self) -> bool:
        """Whether the Deployment is told what is wanted, and its status speaks of that."""
        if self.deployment is None:
            return False
        generation = self.deployment["metadata"].get("generation")
        return live_hash(self.deployment) == self.revision and self.count("observedGeneration") == generation

    @property
    def is_rolled_out(self) -> bool:
        """Whether every replica is of the wanted revision, and no other one is left."""
        total, updated = self.count("replicas"), self.count("updatedReplicas")
        return self.is_deployment_current and total == updated == self.num_wanted


Check = Callable[[Facts], Verdict | None]


def first_fault(facts: Facts) -> Verdict | None:
    """The first check that speaks, or None."""
    return next((verdict for check in CHECKS if (verdict := check(facts)) is not None), None)


def something_is_in_the_way(facts: Facts) -> Verdict | None:
    """A name is taken, or a predecessor is still being collected."""
    if not facts.plan.findings:
        return None
    return _false(facts.plan.findings[0].reason, "; ".join(each.message for each in facts.plan.findings))


def api_server_refuses(facts: Facts) -> Verdict | None:
    """An object could not be written."""
    faults = facts.observed.apply_faults
    return _false(names.REASON_APPLY_REFUSED, "; ".join(map(_refused, faults))) if faults else None


def runtime_rejects_configuration(facts: Facts) -> Verdict | None:
    """What only the model can tell: the context exceeds its window, the memory does not suffice, no such file."""
    if facts.choice.rejected is None:
        return None
    return _false(names.REASON_CONFIGURATION_REJECTED, f"{facts.choice.rejected}. {_consequence(facts)}")


def is_suspended(facts: Facts) -> Verdict | None:
    return _false(names.REASON_SUSPENDED, "spec.suspend is true: no pods run") if facts.server.spec.suspend else None


def is_scaled_to_zero(facts: Facts) -> Verdict | None:
    if facts.server.replicas > 0:
        return None
    return _false(names.REASON_SCALED_TO_ZERO, "spec.replicas is 0: the Service stays and reaches nobody")


def pods_cannot_be_created(facts: Facts) -> Verdict | None:
    """Quota, LimitRange, pod security: the Deployment says what the API server told its ReplicaSet."""
    failure = facts.deployment_condition("ReplicaFailure")
    if failure.get("status") != "True":
        return None
    return _false(names.REASON_POD_CREATION_REFUSED, str(failure.get("message", "")))


def pod_is_in_trouble(facts: Facts) -> Verdict | None:
    """Of the revision that the Deployment runs; pods of an older one are on their way out."""
    running = live_hash(facts.deployment)
    pods = [pod for pod in facts.observed.pods if revision_of(pod) == running]
    trouble = pod_trouble(pods, facts.observed.events)
    return None if trouble is None else _false(trouble.reason, trouble.message)


def rollout_is_stalled(facts: Facts) -> Verdict | None:
    progressing = facts.deployment_condition("Progressing")
    if progressing.get("reason") != names.REASON_PROGRESS_DEADLINE or not facts.is_deployment_current:
        return None
    return _false(names.REASON_PROGRESS_DEADLINE, f"{_progress(facts)} within the time for a start and a drain")


def rollout_is_under_way(facts: Facts) -> Verdict | None:
    if facts.is_rolled_out:
        return None
    return _false(names.REASON_UPDATING, _progress(facts))


def replicas_are_starting(facts: Facts) -> Verdict | None:
    ready = facts.count("readyReplicas")
    if ready >= facts.num_wanted:
        return None
    return _false(names.REASON_STARTING, f"{ready} of {facts.num_wanted} replicas are ready")


def budgets_differ(facts: Facts) -> Verdict | None:
    """Also when another replica could not be read: what is known to differ is told first."""
    drifted = [replica for replica in facts.replicas if replica.differences]
    return _false(names.REASON_BUDGET_DRIFT, "; ".join(map(drift_in_words, drifted))) if drifted else None


def budget_is_unread(facts: Facts) -> Verdict | None:
    unread = unread_in_words(facts)
    return None if unread is None else Verdict("Unknown", names.REASON_BUDGET_UNREAD, unread)


CHECKS: Final[tuple[Check, ...]] = (
    something_is_in_the_way,
    api_server_refuses,
    runtime_rejects_configuration,
    is_suspended,
    is_scaled_to_zero,
    pods_cannot_be_created,
    pod_is_in_trouble,
    rollout_is_stalled,
    rollout_is_under_way,
    replicas_are_starting,
    budgets_differ,
    budget_is_unread,
)


def unread_in_words(facts: Facts) -> str | None:
    """Which replicas have not said what they grant; None when all have."""
    read = [replica for replica in facts.replicas if replica.is_current and not replica.fault]
    faults = [f"pod {replica.pod}: {replica.fault}" for replica in facts.replicas if replica.fault]
    if len(read) >= facts.num_wanted and not faults:
        return None
    count = f"the limits of {len(read)} of {facts.num_wanted} replicas were read"
    return "; ".join([count, *faults])


def drift_in_words(replica: Replica) -> str:
    """Which pod, which field, declared and observed."""
    values = ", ".join(
        f"{field} declared {_shown(wanted)}, observed {_shown(seen)}" for field, wanted, seen in replica.differences
    )
    return f"pod {replica.pod} on node {replica.node or 'unknown'}: {values}"


def _false(reason: str, message: str) -> Verdict:
    return Verdict("False", reason, message)


def _refused(fault: ApplyFault) -> str:
    return f"{fault.ref.kind} {fault.ref.name}: {fault.message}"


def _consequence(facts: Facts) -> str:
    hint = f"change the spec, or set the annotation {names.ANNOTATION_RESTART} to a new value to try again"
    if not facts.choice.rolled_back:
        return f"There is no earlier configuration to go back to: {hint}"
    if facts.count("readyReplicas") > 0:
        return f"The last accepted configuration goes on serving: {hint}"
    return f"The last accepted configuration is being started again, and nothing is served until it has: {hint}"


def _progress(facts: Facts) -> str:
    if not facts.is_deployment_current:
        return "the Deployment has not taken up this generation yet"
    updated, ready, total = (facts.count(field) for field in ("updatedReplicas", "readyReplicas", "replicas"))
    return f"{updated} of {facts.num_wanted} replicas are updated, {ready} of {total} are ready"


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:,}" if isinstance(value, int) else str(value)
