"""Which writes are due: foreign objects, leftovers, drift by hand, and pods that leave the Service."""

from typing import Any

import pytest

from doubles.operator_objects import SETTINGS, UID, ApiServer, names_of, pod, reading, server, settled
from plimsoll_operator import names
from plimsoll_operator.desired import desired
from plimsoll_operator.observed import BudgetReading, Observed
from plimsoll_operator.plan import Plan, plan
from plimsoll_operator.spec import InferenceServer, config_hash

CACHED = {"model": {"source": "hf://a/b"}, "modelCache": {"size": "1Gi"}}


def planned(seen_server: InferenceServer, observed: Observed) -> Plan:
    return plan(seen_server, desired(seen_server, SETTINGS), observed)


def foreign(kind: str, name: str = "tiny", owners: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "here", "uid": "other", "ownerReferences": owners or []}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": {}}


@pytest.mark.parametrize("kind", ["Service", "Deployment", "ServiceAccount", "NetworkPolicy"])
def test_an_object_of_another_owner_is_reported_and_never_taken_over(kind: str) -> None:
    result = planned(server(), Observed(children=(foreign(kind),)))
    assert result.is_empty
    (finding,) = result.findings
    assert finding.reason == names.REASON_NAME_TAKEN
    assert f"{kind} tiny exists and was not made for this server" in finding.message


def test_children_of_a_deleted_namesake_are_waited_for() -> None:
    owner = {"kind": names.KIND, "name": "tiny", "uid": "older", "controller": True}
    result = planned(server(), Observed(children=(foreign("Service", owners=[owner]),)))
    assert result.is_empty
    assert result.findings[0].reason == names.REASON_WAITING_FOR_COLLECTION


def test_a_server_that_is_being_deleted_gets_no_writes() -> None:
    """B97: children were made again and again in a namespace that was going."""
    going = server(deletionTimestamp="2026-01-01T00:00:00Z")
    assert planned(going, Observed()) == Plan()


def test_a_child_that_was_deleted_by_hand_comes_back() -> None:
    """B118."""
    cluster, observed = settled(server({"replicas": 2}))
    del cluster.objects["PodDisruptionBudget", "tiny"]
    assert names_of(planned(server({"replicas": 2}), cluster.observed(pods=observed.pods)).apply) == [
        "PodDisruptionBudget/tiny"
    ]


def test_a_child_that_nothing_wants_any_longer_goes() -> None:
    """B118: removing a section left its child behind, still acting."""
    cluster, observed = settled(server({"replicas": 2}))
    result = planned(server({"replicas": 1}), cluster.observed(pods=observed.pods))
    assert [(ref.kind, ref.name, ref.uid) for ref in result.delete] == [
        ("PodDisruptionBudget", "tiny", "uid-of-PodDisruptionBudget-tiny")
    ]


def test_nothing_is_deleted_that_the_operator_did_not_make() -> None:
    _, observed = settled(server())
    labelled = foreign("PodDisruptionBudget", "mine")
    labelled["metadata"]["labels"] = names.child_labels("tiny")
    result = planned(server(), Observed(children=(*observed.children, labelled), pods=observed.pods))
    assert result.is_empty


def test_a_cache_goes_only_when_no_pod_and_no_template_names_it() -> None:
    cluster = ApiServer()
    cluster.reconcile(server(CACHED))
    without = server({"model": {"source": "hf://a/b"}})
    user = pod("a", config_hash(server(CACHED)))
    user["spec"]["volumes"] = [{"persistentVolumeClaim": {"claimName": "tiny-model-cache"}}]
    assert cluster.reconcile(without, pods=(user,)).delete == ()
    assert [ref.kind for ref in cluster.reconcile(without, pods=()).delete] == ["PersistentVolumeClaim"]


@pytest.mark.parametrize(
    ("kind", "path", "value", "is_put_right"),
    [
        pytest.param("Deployment", "spec.replicas", 7, True, id="B115-scaled-past-the-server"),
        pytest.param("Service", "spec.ports", [], True, id="field-of-ours"),
        pytest.param("Service", "metadata.labels.app.kubernetes.io/name", "x", True, id="label-of-ours"),
        pytest.param("Service", "metadata.labels.somebody", "x", False, id="B99-label-of-a-webhook"),
        pytest.param("Service", "metadata.annotations.somebody", "x", False, id="annotation-of-another"),
        pytest.param("Service", "spec.clusterIP", "10.0.0.1", False, id="B99-default-of-the-api-server"),
        pytest.param("Deployment", "status.replicas", 1, False, id="B100-status"),
    ],
)
def test_what_others_wrote(kind: str, path: str, value: Any, is_put_right: bool) -> None:
    """B99: defaults and foreign fields made every reconcile a write, a million generations long."""
    cluster, observed = settled(server())
    parts = path.split(".", 2)
    place = cluster.objects[kind, "tiny"]
    for part in parts[:-1]:
        place = place.setdefault(part, {})
    place[parts[-1]] = value
    result = planned(server(), cluster.observed(pods=observed.pods))
    assert names_of(result.apply) == ([f"{kind}/tiny"] if is_put_right else [])


def test_an_amount_that_the_api_server_spells_its_own_way_is_no_change() -> None:
    """B99: 1000m came back as 1, and every reconcile was an update."""
    amounts = {"resources": {"requests": {"cpu": "1000m", "memory": "2048Mi"}, "limits": {"cpu": "1500m"}}}
    cluster = ApiServer()
    cluster.reconcile(server(amounts))
    live = cluster.deployment["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert live == {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"cpu": "1500m"}}
    assert cluster.reconcile(server(amounts)).is_empty


def test_a_field_that_is_no_longer_wanted_is_noticed() -> None:
    """It is still in the live object, so only the hash of what was applied tells."""
    cluster = ApiServer()
    cluster.reconcile(server({"network": {"from": [{"podSelector": {}}]}}))
    policy = cluster.observed().child("NetworkPolicy", "tiny")
    assert policy is not None
    result = cluster.reconcile(server({"network": {"from": []}}))
    assert names_of(result.apply) == ["NetworkPolicy/tiny"]


DRIFTED = reading(max_output_default=4096)
UNREAD = BudgetReading(fault="no answer within 2 seconds")


@pytest.mark.parametrize(
    ("policy", "label", "said", "expected"),
    [
        pytest.param("Exclude", "true", DRIFTED, [("a", None)], id="drifted-leaves"),
        pytest.param("Exclude", None, reading(), [("a", "true")], id="mended-comes-back"),
        pytest.param("Exclude", None, DRIFTED, [], id="stays-out"),
        pytest.param("Exclude", "true", UNREAD, [], id="unread-is-never-drift"),
        pytest.param("Exclude", None, UNREAD, [], id="unread-does-not-come-back"),
        pytest.param("Exclude", None, None, [], id="not-asked-does-not-come-back"),
        pytest.param("Warn", "true", DRIFTED, [], id="warn-leaves-it-in"),
        pytest.param("Warn", None, DRIFTED, [("a", "true")], id="warn-brings-it-back"),
    ],
)
def test_a_replica_with_other_limits_leaves_the_service(
    policy: str, label: str | None, said: BudgetReading | None, expected: list[tuple[str, str | None]]
) -> None:
    seen_server = server({"onBudgetDrift": policy, "maxOutput": {"default": 512}})
    cluster, _ = settled(seen_server)
    one = pod("a", config_hash(seen_server), routable=label)
    observed = cluster.observed(pods=(one,), budgets={} if said is None else {"a": said})
    changes = planned(seen_server, observed).label_changes
    assert [(change.ref.name, change.value) for change in changes] == expected


def test_a_pod_of_an_older_revision_is_not_excluded_during_a_rollout() -> None:
    """It has the old limits by right, and excluding it would cut the service."""
    seen_server = server({"onBudgetDrift": "Exclude", "maxOutput": {"default": 512}})
    cluster, _ = settled(seen_server)
    observed = cluster.observed(pods=(pod("a", "older"),), budgets={"a": DRIFTED})
    assert planned(seen_server, observed).label_changes == ()


def test_owner_references_are_compared_by_uid() -> None:
    _, observed = settled(server())
    assert observed.children[0]["metadata"]["ownerReferences"][0]["uid"] == UID
    assert planned(server(), observed).is_empty
    assert planned(server(uid="another"), observed).findings != ()
