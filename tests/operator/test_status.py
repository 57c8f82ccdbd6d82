"""The status as a table: what the cluster says, and what the Ready condition then says in words."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from doubles.operator_objects import (
    SETTINGS,
    ApiServer,
    ended,
    pod,
    reading,
    server,
    settled,
    waiting,
)
from plimsoll_operator import names
from plimsoll_operator.desired import desired
from plimsoll_operator.observed import ApplyFault, BudgetReading, ObjectRef, Observed, RequestCounts, ref_of
from plimsoll_operator.plan import plan
from plimsoll_operator.spec import InferenceServer, config_hash
from plimsoll_operator.status import invalid_status, status, transitions

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DECLARED: dict[str, Any] = {
    "contextLength": 2048,
    "maxOutput": {"default": 512, "limit": 1024},
    "kvCache": {"maxTokens": 8192},
}
SERVER = server(DECLARED)
REVISION = config_hash(SERVER)


def status_of(seen_server: InferenceServer, observed: Observed, now: datetime = NOW) -> dict[str, Any]:
    return status(seen_server, observed, plan(seen_server, desired(seen_server, SETTINGS), observed), now)


def condition(content: dict[str, Any], kind: str = names.CONDITION_READY) -> tuple[str, str, str]:
    (found,) = [each for each in content["conditions"] if each["type"] == kind]
    return found["status"], found["reason"], found["message"]


def test_ready_only_when_everything_is_as_declared() -> None:
    _, observed = settled(server({**DECLARED, "replicas": 2}))
    content = status_of(server({**DECLARED, "replicas": 2}), observed)
    assert [(each["type"], each["status"], each["reason"]) for each in content["conditions"]] == [
        ("Ready", "True", "Ready"),
        ("Accepted", "True", "Accepted"),
        ("Available", "True", "Serving"),
        ("Progressing", "False", "Complete"),
        ("BudgetConsistent", "True", "Consistent"),
    ]
    assert all(each["observedGeneration"] == 3 for each in content["conditions"])
    assert content["endpoint"] == "http://tiny.here.svc:8000"
    assert content["selector"] == "app.kubernetes.io/name=plimsoll,plimsoll.dev/server=tiny"
    limits = {
        "contextLength": 2048,
        "maxOutputDefault": 512,
        "maxOutputLimit": 1024,
        "overBudget": "Clamp",
        "runningSlots": 4,
        "kvCapacityTokens": 8192,
    }
    assert content["budget"] == {"declared": limits, "effective": limits}
    assert content["replicaBudgets"][0] == {
        "pod": "a",
        "node": "node-1",
        "revision": config_hash(server(DECLARED)),
        "consistent": True,
        **limits,
    }


def with_pod(**facts: Any) -> dict[str, Any]:
    """One pod of the current revision that is not ready."""
    return {"pods": (pod("a", REVISION, ready=False, **facts),), "budgets": {}}


def event(kind: str, name: str, reason: str, message: str) -> dict[str, Any]:
    return {"involvedObject": {"kind": kind, "name": name}, "reason": reason, "message": message}


STARTING = waiting("ContainerCreating")
CAPACITY = "context_length 2,048 exceeds the model's window of 1,024 tokens"

TROUBLES = [
    pytest.param(
        with_pod(state=waiting("ImagePullBackOff", "Back-off pulling nosuch:tag")),
        "ImagePullFailed",
        ["pod a", "example/runtime:1", "Back-off pulling nosuch:tag"],
        id="B119-image",
    ),
    pytest.param(
        with_pod(state=waiting("ErrImagePull", "pull access denied")),
        "ImagePullFailed",
        ["access denied"],
        id="B119-pull",
    ),
    pytest.param(
        with_pod(state=waiting("CreateContainerConfigError", 'secret "hub" not found')),
        "ContainerConfigFailed",
        ['secret "hub" not found'],
        id="B101-secret",
    ),
    pytest.param(
        with_pod(state=waiting("CrashLoopBackOff"), last_state=ended("the engine stopped, see the log above")),
        "CrashLoop",
        ["pod a", "the engine stopped"],
        id="B119-crash-loop",
    ),
    pytest.param(
        with_pod(last_state=ended("the engine stopped, see the log above")),
        "CrashLoop",
        ["the engine stopped"],
        id="B119-started-again-and-not-ready",
    ),
    pytest.param(
        with_pod(state=ended("", 137, "OOMKilled")), "CrashLoop", ["OOMKilled", "limits.memory"], id="out-of-memory"
    ),
    pytest.param(
        with_pod(state=ended("Traceback:\nKeyError: 'a'", 1)),
        "CrashLoop",
        ["exit code 1: KeyError: 'a'"],
        id="traceback",
    ),
    pytest.param(
        with_pod(state=ended("hf://a/b: the hub answered 404"), container="fetch"),
        "FetchFailed",
        ["container fetch", "the hub answered 404"],
        id="fetch",
    ),
    pytest.param(
        with_pod(unschedulable="0/1 nodes are available: 1 Insufficient nvidia.com/gpu."),
        "Unschedulable",
        ["pod a", "Insufficient nvidia.com/gpu"],
        id="B125-unschedulable",
    ),
    pytest.param(
        {**with_pod(state=STARTING), "events": (event("Pod", "a", "FailedMount", 'configmap "x" not found'),)},
        "VolumeFailed",
        ["Pod a", 'configmap "x" not found'],
        id="B101-volume",
    ),
    pytest.param(
        {
            **with_pod(unschedulable=""),
            "pods": (pod("a", REVISION, ready=False, state=STARTING),),
            "events": (event("PersistentVolumeClaim", "tiny-model-cache", "ProvisioningFailed", "no class shared"),),
        },
        "VolumeFailed",
        ["no class shared"],
        id="B125-unbound-claim",
    ),
    pytest.param(with_pod(state=ended(CAPACITY)), "ConfigurationRejected", [CAPACITY, "no earlier"], id="B119-model"),
    pytest.param(
        {"apply_faults": (ApplyFault(ObjectRef("v1", "Service", "here", "tiny"), "exceeded quota: services=0"),)},
        "ApplyRefused",
        ["Service tiny", "exceeded quota"],
        id="B103-apply-refused",
    ),
]


@pytest.mark.parametrize(("seen", "reason", "expected"), TROUBLES)
def test_a_trouble_reaches_the_ready_condition_in_words(seen: dict[str, Any], reason: str, expected: list[str]) -> None:
    cluster = ApiServer()
    cluster.reconcile(SERVER)
    cluster.report(replicas=1, ready=0)
    content = status_of(SERVER, cluster.observed(**seen))
    assert condition(content)[:2] == ("False", reason)
    for words in expected:
        assert words in condition(content)[2]
    assert "\n" not in condition(content)[2]


@pytest.mark.parametrize(
    ("kind", "said", "reason", "expected"),
    [
        pytest.param(
            "ReplicaFailure",
            {"status": "True", "reason": "FailedCreate", "message": "pods is forbidden: exceeded quota: pods=0"},
            "PodCreationRefused",
            "exceeded quota: pods=0",
            id="B120-quota",
        ),
        pytest.param(
            "Progressing",
            {"status": "False", "reason": "ProgressDeadlineExceeded"},
            "ProgressDeadlineExceeded",
            "1 of 1 replicas are updated, 0 of 1 are ready",
            id="B112-beyond-the-startup-budget",
        ),
    ],
)
def test_what_the_deployment_says(kind: str, said: dict[str, str], reason: str, expected: str) -> None:
    cluster = ApiServer()
    cluster.reconcile(SERVER)
    cluster.report(replicas=1, ready=0, conditions={kind: said})
    status_word, found, message = condition(status_of(SERVER, cluster.observed()))
    assert (status_word, found) == ("False", reason)
    assert expected in message


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        pytest.param({"suspend": True}, "Suspended", id="suspended"),
        pytest.param({"replicas": 0}, "ScaledToZero", id="B117-zero"),
    ],
)
def test_nothing_wanted_is_not_ready(spec: dict[str, Any], reason: str) -> None:
    """B122: "all of zero replicas are ready" was Ready."""
    stopped = server({**DECLARED, **spec})
    cluster = ApiServer()
    cluster.reconcile(stopped)
    cluster.report(replicas=0, ready=0)
    content = status_of(stopped, cluster.observed())
    assert condition(content)[:2] == ("False", reason)
    assert condition(content, "Available")[:2] == ("False", reason)
    assert condition(content, "BudgetConsistent")[0] == "Unknown"


def test_a_changed_spec_is_not_ready_from_the_first_status_on() -> None:
    """B121: Ready=True from before the change was read as success of the new spec."""
    changed = server({**DECLARED, "runningSlots": 7}, generation=4)
    cluster, observed = settled(SERVER)
    content = status_of(changed, observed)  # in the same reconcile that applies it
    assert content["observedGeneration"] == 4
    assert condition(content)[:2] == ("False", "Updating")
    assert condition(content, "Accepted")[:2] == ("Unknown", "AwaitingModel")
    assert condition(content, "Available")[0] == "True"  # the old replica goes on serving
    cluster.reconcile(changed, pods=observed.pods)
    content = status_of(changed, cluster.observed(pods=observed.pods))  # the Deployment's status is an old one
    assert condition(content)[:2] == ("False", "Updating")
    cluster.report(replicas=2, ready=1, updated=1)
    both = (*observed.pods, pod("new", config_hash(changed), ready=False, state=STARTING))
    content = status_of(changed, cluster.observed(pods=both, budgets={"a": reading()}))
    assert condition(content)[2] == "1 of 1 replicas are updated, 1 of 2 are ready"
    cluster.report(replicas=1, ready=1)
    done = cluster.observed(pods=(pod("new", config_hash(changed)),), budgets={"new": reading(running_slots=7)})
    assert condition(status_of(changed, done))[:2] == ("True", "Ready")


def test_a_change_that_restarts_nothing_advances_the_generation() -> None:
    """B121."""
    _, observed = settled(SERVER)
    content = status_of(server(DECLARED, generation=4, labels={"a": "b"}), observed)
    assert content["observedGeneration"] == 4
    assert condition(content)[0] == "True"


DIFFERENCES = [
    pytest.param({"context_length": 1024}, "contextLength declared 2,048, observed 1,024", id="context"),
    pytest.param({"max_output_default": 32768}, "maxOutputDefault declared 512, observed 32,768", id="first-report"),
    pytest.param({"max_output_limit": None}, "maxOutputLimit declared 1,024, observed none", id="no-limit"),
    pytest.param({"over_budget": "refuse"}, "overBudget declared Clamp, observed Refuse", id="over-budget"),
    pytest.param({"running_slots": 1}, "runningSlots declared 4, observed 1", id="slots"),
    pytest.param({"kv_capacity_tokens": 100}, "kvCapacityTokens declared 8,192, observed 100", id="kv-declared"),
]


@pytest.mark.parametrize(("change", "expected"), DIFFERENCES)
def test_drift_names_pod_field_declared_and_observed(change: dict[str, Any], expected: str) -> None:
    _, observed = settled(SERVER, a=reading(**change))
    content = status_of(SERVER, observed)
    assert condition(content, "BudgetConsistent") == ("False", "BudgetDrift", f"pod a on node node-1: {expected}")
    assert condition(content)[:2] == ("False", "BudgetDrift")
    entry = content["replicaBudgets"][0]
    assert entry["consistent"] is False
    assert len(entry["differences"]) == 1


def test_what_was_not_declared_is_compared_among_the_replicas() -> None:
    """Three machines with one memory and one with less: the one that grants less is named."""
    undeclared = server({"replicas": 3})
    _, observed = settled(undeclared, a=reading(), b=reading(context_length=1024), c=reading(kv_capacity_tokens=1))
    content = status_of(undeclared, observed)
    assert condition(content, "BudgetConsistent")[2] == (
        "pod b on node node-1: contextLength declared 2,048, observed 1,024"
    )
    assert content["budget"]["effective"]["contextLength"] == 1024
    assert "contextLength" not in content["budget"]["declared"]


def test_slots_for_experts_are_shown_and_may_differ() -> None:
    """They are what a node's memory leaves, and no limit of a request."""
    declared = server({"replicas": 3, "offload": {"mode": "Auto"}})
    more, fewer = ({"mode": "experts", "expert_slots": slots} for slots in (96, 64))
    _, observed = settled(
        declared, a=reading(offload=more), b=reading(offload=fewer), c=reading(offload={"mode": "none"})
    )
    content = status_of(declared, observed)
    assert condition(content, "BudgetConsistent")[0] == "True"
    assert content["budget"]["effective"]["expertSlots"] == 64
    assert [each.get("expertSlots") for each in content["replicaBudgets"]] == [96, 64, None]
    assert "expertSlots" not in content["budget"]["declared"]


def test_a_replica_of_an_older_revision_is_shown_and_not_called_drifting() -> None:
    """During a rollout both revisions serve; the floor of both is what a client can rely on."""
    cluster, _ = settled(SERVER)
    both = (pod("a", REVISION), pod("b", "older"))
    content = status_of(SERVER, cluster.observed(pods=both, budgets={"a": reading(), "b": reading(context_length=64)}))
    assert condition(content, "BudgetConsistent")[0] == "True"
    assert "consistent" not in content["replicaBudgets"][1]
    assert content["budget"]["effective"]["contextLength"] == 64


def test_a_container_that_is_ready_again_is_no_crash_loop() -> None:
    """The pod waits for something else, for example a sidecar that a webhook has added."""
    cluster = ApiServer()
    cluster.reconcile(SERVER)
    cluster.report(replicas=1, ready=0)
    one = pod("a", REVISION, ready=False, last_state=ended("the engine stopped"))
    one["status"]["containerStatuses"][0]["ready"] = True
    assert condition(status_of(SERVER, cluster.observed(pods=(one,))))[1] == "Starting"


@pytest.mark.parametrize(
    ("budgets", "expected"),
    [
        pytest.param({"a": BudgetReading(fault="no answer within 2 seconds")}, "pod a: no answer", id="no-answer"),
        pytest.param({"a": BudgetReading({"context_length": []})}, "not that of a Plimsoll runtime", id="foreign"),
    ],
)
def test_a_budget_that_cannot_be_read_is_unknown_and_never_drift(
    budgets: dict[str, BudgetReading], expected: str
) -> None:
    _, observed = settled(SERVER, **budgets)
    content = status_of(SERVER, observed)
    assert condition(content)[:2] == ("Unknown", "BudgetUnread")
    assert condition(content, "BudgetConsistent")[:2] == ("Unknown", "BudgetUnread")
    assert expected in condition(content)[2]
    assert "consistent" not in content["replicaBudgets"][0]


def test_known_drift_is_told_before_an_unread_budget() -> None:
    two = server({**DECLARED, "replicas": 2})
    _, observed = settled(two, a=BudgetReading(fault="no answer"), b=reading(running_slots=1))
    assert condition(status_of(two, observed))[:2] == ("False", "BudgetDrift")


@pytest.mark.parametrize(
    ("ready", "expected"),
    [
        pytest.param(1, "The last accepted configuration goes on serving", id="surge"),
        pytest.param(0, "nothing is served until it has", id="no-surge"),
    ],
)
def test_a_rejected_change_says_what_goes_on(ready: int, expected: str) -> None:
    wrong = server({"contextLength": 99_999}, generation=4)
    cluster, observed = settled(SERVER)
    cluster.reconcile(wrong, pods=observed.pods)
    failed = pod("new", config_hash(wrong), ready=False, state=ended(CAPACITY))
    old = pod("a", REVISION, ready=ready == 1)
    cluster.reconcile(wrong, pods=(old, failed))
    cluster.report(replicas=1, ready=ready)
    content = status_of(wrong, cluster.observed(pods=(old,), budgets={"a": reading()}))
    for kind in ("Ready", "Accepted"):
        assert condition(content, kind)[:2] == ("False", "ConfigurationRejected")
        assert CAPACITY in condition(content, kind)[2]
        assert expected in condition(content, kind)[2]
    assert condition(content, "Available")[0] == ("True" if ready else "False")
    assert condition(content, "BudgetConsistent")[0] == "Unknown"
    assert condition(content, "Progressing")[:2] == ("False", "Stalled")


def test_times_move_only_with_the_status_of_a_condition() -> None:
    _, observed = settled(SERVER)
    first = status_of(SERVER, observed)
    later = NOW + timedelta(hours=1)
    assert status_of(SERVER, replace(observed, previous_status=first), later) == first
    drifted = replace(observed, previous_status=first, budgets={"a": reading(running_slots=1)})
    second = status_of(SERVER, drifted, later)
    times = {each["type"]: each["lastTransitionTime"] for each in second["conditions"]}
    assert times["Ready"] == "2026-01-01T01:00:00Z"
    assert times["Available"] == "2026-01-01T00:00:00Z"


def test_one_event_for_each_transition_and_none_for_a_loop() -> None:
    """B119: a warning for each round of a crash loop."""
    _, observed = settled(SERVER)
    healthy = status_of(SERVER, observed)
    drifted = status_of(SERVER, replace(observed, budgets={"a": reading(running_slots=1)}))
    said = transitions(healthy, drifted)
    assert [(event.type, event.reason) for event in said] == [("Warning", "BudgetDrift")]
    assert transitions(drifted, drifted) == ()
    assert [(event.type, event.reason) for event in transitions(drifted, healthy)] == [("Normal", "Ready")]


def test_the_first_status_of_a_server_tells_only_of_faults() -> None:
    """Before, each new server began with an event that it is being updated."""
    cluster = ApiServer()
    cluster.reconcile(SERVER)
    first = status_of(SERVER, cluster.observed())
    assert condition(first)[1] == "Updating"
    assert transitions({}, first) == ()
    _, observed = settled(SERVER)
    healthy = status_of(SERVER, observed)
    assert [event.reason for event in transitions(healthy, first)] == ["Updating"]
    refused = cluster.observed(apply_faults=(ApplyFault(ref_of(cluster.observed().children[0]), "quota"),))
    assert [event.type for event in transitions({}, status_of(SERVER, refused))] == ["Warning"]


@pytest.mark.parametrize("replicas", [1, 2])
def test_sentences_agree_with_the_number_of_replicas(replicas: int) -> None:
    many = server({**DECLARED, "replicas": replicas})
    _, observed = settled(many, a=reading(), b=reading())
    content = status_of(many, observed)
    one = replicas == 1
    assert condition(content)[2].startswith("the replica serves" if one else "all 2 replicas serve this")
    assert condition(content, "BudgetConsistent")[2].startswith("the replica grants" if one else "all 2 replicas grant")


@pytest.mark.parametrize("seen", [param.values[0] for param in TROUBLES], ids=[str(param.id) for param in TROUBLES])
def test_a_trouble_is_a_warning_and_a_start_is_not(seen: Any) -> None:
    cluster = ApiServer()
    cluster.reconcile(SERVER)
    cluster.report(replicas=1, ready=0)
    starting = status_of(SERVER, cluster.observed(pods=(pod("a", REVISION, ready=False, state=STARTING),)))
    assert [event.type for event in transitions({}, starting)] == []
    said = transitions(starting, status_of(SERVER, cluster.observed(**seen)))
    assert {event.type for event in said} == {"Warning"}
    assert len(said) == 1


def counts(*samples: tuple[float, int, dict[str, int]]) -> tuple[RequestCounts, ...]:
    return tuple(RequestCounts(at, ended_requests, refused) for at, ended_requests, refused in samples)


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        pytest.param(
            {"a": counts((0, 5, {}), (299, 15, {"context_length_exceeded": 10}))},
            {"reason": "context_length_exceeded", "requests": 10},
            id="second-report",
        ),
        pytest.param(
            {"a": counts((0, 5, {}), (299, 16, {"context_length_exceeded": 10}))}, None, id="one-was-answered"
        ),
        pytest.param({"a": counts((0, 0, {}), (299, 2, {"x": 1, "y": 1}))}, None, id="two-reasons"),
        pytest.param({"a": counts((0, 0, {}), (100, 2, {"x": 2}))}, None, id="not-five-minutes-yet"),
        pytest.param({"a": counts((0, 2, {"x": 2}), (299, 2, {"x": 2}))}, None, id="nobody-asked"),
        pytest.param({"a": counts((0, 9, {}), (299, 2, {"x": 2}))}, {"reason": "x", "requests": 2}, id="restarted"),
        pytest.param(
            {"a": counts((0, 0, {}), (299, 1, {"x": 1})), "b": counts((0, 0, {}), (299, 1, {}))},
            None,
            id="other-answers",
        ),
        pytest.param(
            {"a": counts((0, 0, {}), (100, 5, {}), (400, 6, {"x": 1}))}, {"reason": "x", "requests": 1}, id="window"
        ),
    ],
)
def test_when_every_request_is_refused_for_one_reason_it_is_told(
    readings: dict[str, tuple[RequestCounts, ...]], expected: dict[str, Any] | None
) -> None:
    """The second report: a server refused all requests, and nobody was told."""
    _, observed = settled(SERVER)
    before = status_of(SERVER, observed)
    content = status_of(SERVER, replace(observed, request_counts=readings))
    assert content.get("refusals") == expected
    said = [event.message for event in transitions(before, content)]
    assert said == ([] if expected is None else [said[0]])
    assert transitions(content, content) == ()


def test_a_stored_object_that_cannot_be_read_keeps_what_it_had() -> None:
    _, observed = settled(SERVER)
    before = status_of(SERVER, observed)
    content = invalid_status(9, "spec.contextLength: 0 was given", before, NOW)
    assert content["observedGeneration"] == 9
    assert condition(content) == ("False", "InvalidSpec", "spec.contextLength: 0 was given")
    assert condition(content, "Available")[0] == "True"
    assert content["budget"] == before["budget"]
    assert [event.type for event in transitions(before, content)] == ["Warning"]
