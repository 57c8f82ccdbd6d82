"""Reconciles before a real kube-apiserver: children made, kept, changed, removed, and never more than that."""

from dataclasses import replace
from typing import Any

import pytest

from doubles.operator_cluster import SETTINGS, Site
from operator_api.conftest import Api
from plimsoll_operator import names
from plimsoll_operator.cluster import ApiFault
from plimsoll_operator.reconcile import Outcome

pytestmark = pytest.mark.cluster

ALWAYS = {"ServiceAccount/tiny", "NetworkPolicy/tiny", "Service/tiny", "Deployment/tiny"}


@pytest.fixture
def site(api: Api) -> Site:
    return Site(api.cluster)


@pytest.fixture
def settled(site: Site) -> Site:
    """The server `tiny`, its children written, and nothing left to do."""
    site.user_applies()
    site.settle()
    return site


def test_a_new_server_gets_its_children_each_with_its_owner(site: Site) -> None:
    site.user_applies()
    assert site.reconcile() is Outcome.WRITTEN
    assert site.children().keys() == ALWAYS
    uid = site.get(names.KIND)["metadata"]["uid"]
    for child in site.children().values():
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (uid, True)
        (manager,) = child["metadata"]["managedFields"]
        assert (manager["manager"], manager["operation"]) == ("plimsoll", "Apply")
    metadata = site.get(names.KIND)["metadata"]
    assert "finalizers" not in metadata
    assert "annotations" not in metadata


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="plain"),
        pytest.param(
            {
                "resources": {"requests": {"cpu": "1000m", "memory": "2048Mi"}, "limits": {"cpu": 1}},
                "env": [{"name": "B", "value": "1"}, {"name": "A", "value": ""}],
            },
            id="B99-spelled-otherwise",
        ),
        pytest.param(
            {"model": {"source": "hf://org/name"}, "modelCache": {"size": "1024Mi"}, "replicas": 3}, id="everything"
        ),
    ],
)
def test_a_second_reconcile_writes_nothing(site: Site, changes: dict[str, Any]) -> None:
    """B99, B100. Before, equal values written otherwise, and the operator's own writes, were updates for ever."""
    site.user_applies(**changes)
    site.settle()
    before = site.versions()
    site.writes.clear()
    assert [site.reconcile() for _ in range(3)] == [Outcome.SETTLED] * 3
    assert site.versions() == before
    assert site.writes == []


def test_a_changed_limit_rolls_the_template_and_a_label_does_not(settled: Site) -> None:
    before = settled.get("Deployment")
    settled.kubectl("label", "infsrv/tiny", "team=a", "app.kubernetes.io/instance=x")
    settled.kubectl("annotate", "infsrv/tiny", "note=b")
    settled.settle()
    assert settled.get("Deployment")["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    settled.user_applies(maxOutput={"default": 256, "limit": 1024})
    settled.settle()
    after = settled.get("Deployment")
    assert after["spec"]["template"] != before["spec"]["template"]
    assert "256" in str(after["spec"]["template"]["spec"]["containers"][0]["args"])
    assert after["spec"]["selector"] == before["spec"]["selector"]


def test_a_new_operator_with_another_default_image_restarts_nothing(settled: Site) -> None:
    """B109. Before, upgrading the operator restarted every model of the cluster."""
    before = settled.versions()
    settled.restart_operator(replace(SETTINGS, runtime_image="example/runtime:2"))
    assert settled.reconcile() is Outcome.SETTLED
    assert settled.versions() == before


def test_what_is_wanted_no_longer_goes_also_after_a_restart(site: Site) -> None:
    """B118. Before, the budget of a server with several replicas stayed behind, still acting."""
    site.user_applies(replicas=2)
    site.settle()
    assert site.children().keys() == ALWAYS | {"PodDisruptionBudget/tiny"}
    site.user_applies(replicas=1)
    site.restart_operator()
    site.settle()
    assert site.children().keys() == ALWAYS


@pytest.mark.parametrize("kind", ["deployment", "service", "networkpolicy", "serviceaccount"])
def test_a_deleted_child_comes_back(settled: Site, kind: str) -> None:
    settled.kubectl("delete", f"{kind}/tiny", "--cascade=background")
    assert settled.reconcile() is Outcome.WRITTEN
    assert settled.children().keys() == ALWAYS


def test_a_change_by_hand_is_undone_and_what_others_add_stays(settled: Site) -> None:
    settled.kubectl("label", "service/tiny", "mesh=on")
    settled.kubectl("patch", "service/tiny", "--type=merge", '--patch={"spec":{"selector":{"app":"x"}}}')
    settled.kubectl("patch", "deployment/tiny", "--type=merge", '--patch={"spec":{"replicas":7}}')
    settled.settle()
    assert settled.get("Service")["metadata"]["labels"]["mesh"] == "on"
    assert settled.get("Deployment")["spec"]["replicas"] == 1


@pytest.mark.parametrize(
    ("kind", "foreign"),
    [
        ("Service", {"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80}]}}),
        ("ServiceAccount", {"apiVersion": "v1", "kind": "ServiceAccount"}),
    ],
)
def test_an_object_of_somebody_else_is_told_and_left_alone(site: Site, kind: str, foreign: dict[str, Any]) -> None:
    site.user_applies_object({**foreign, "metadata": {"name": "tiny", "namespace": site.namespace}})
    before = site.get(kind)
    site.user_applies()
    assert site.reconcile() is Outcome.BLOCKED
    assert site.get(kind) == before
    ready = site.condition()
    assert (ready["status"], ready["reason"]) == ("False", names.REASON_NAME_TAKEN)
    assert f"{kind} tiny" in ready["message"]
    assert [event["reason"] for event in site.events()] == [names.REASON_NAME_TAKEN]
    assert site.reconcile() is Outcome.BLOCKED
    assert len(site.events()) == 1, "one event for a transition, however often it is looked at"
    site.kubectl("delete", f"{kind}/tiny")
    site.settle()
    assert site.children().keys() == ALWAYS


def test_an_object_that_appears_in_between_is_not_taken_over(site: Site) -> None:
    """Seen as absent, made by somebody else, then applied: without force that is refused."""
    metadata = {"name": "tiny", "namespace": site.namespace, "labels": {"app.kubernetes.io/name": "other"}}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 80}]}}
    site.user_applies_object(service)
    before = site.get("Service")
    with pytest.raises(ApiFault, match="conflict"):
        site.cluster.apply(
            {**service, "metadata": {**metadata, "labels": {"app.kubernetes.io/name": "plimsoll"}}}, None
        )
    assert site.get("Service") == before


def test_an_autoscaler_on_the_server_is_never_fought(settled: Site) -> None:
    """B115. Before, each reconcile reset the number that the autoscaler had set."""
    settled.kubectl("scale", "infsrv/tiny", "--replicas=3")
    settled.settle()
    assert settled.get("Deployment")["spec"]["replicas"] == 3
    owners = {
        manager["manager"]
        for manager in settled.get(names.KIND)["metadata"]["managedFields"]
        if "f:replicas" in manager["fieldsV1"].get("f:spec", {})
    }
    assert names.FIELD_MANAGER not in owners
    settled.kubectl("annotate", "infsrv/tiny", "touched=1")
    settled.restart_operator()
    settled.settle()
    assert settled.get(names.KIND)["spec"]["replicas"] == settled.get("Deployment")["spec"]["replicas"] == 3


def test_the_status_says_which_generation_it_is_about(settled: Site) -> None:
    """B121. Before, Ready from before a change was read as success for what came after."""
    settled.user_applies(contextLength=1500)
    settled.reconcile()
    server = settled.get(names.KIND)
    generation = server["metadata"]["generation"]
    assert server["status"]["observedGeneration"] == generation == 2
    types = {each["type"] for each in server["status"]["conditions"]}
    assert types == {"Ready", "Accepted", "Available", "Progressing", "BudgetConsistent"}
    assert {each["observedGeneration"] for each in server["status"]["conditions"]} == {generation}
    assert settled.condition()["status"] == "False"


def test_what_the_api_server_refuses_is_said_in_its_words_and_the_rest_is_written(site: Site) -> None:
    """B103. Before, an object that can never be written was retried with the reason only in the log."""
    site.user_applies(resources={"requests": {"cpu": "2"}, "limits": {"cpu": "1"}})
    assert site.reconcile() is Outcome.BLOCKED
    ready = site.condition()
    assert ready["reason"] == names.REASON_APPLY_REFUSED
    assert "must be less than or equal to cpu limit" in ready["message"]
    assert site.children().keys() == ALWAYS - {"Deployment/tiny"}
    site.user_applies()
    site.settle()
    assert site.children().keys() == ALWAYS


def test_a_server_that_is_gone_is_quiet(site: Site) -> None:
    assert site.reconcile("never") is Outcome.GONE
    assert site.writes == []


def test_a_namespace_that_is_going_is_quiet(site: Site) -> None:
    """B97. Before, children were made anew in a namespace on its way out, with errors without end."""
    site.user_applies()
    site.kubectl("delete", "namespace", site.namespace, "--wait=false")
    assert site.reconcile() is Outcome.GONE
    assert len(site.writes) == 1
    assert site.children() == {}
