"""The chart before a real API server: every object is accepted, and the ceilings refuse what is above them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from plimsoll_cluster import Cluster, ClusterError

from chart.conftest import Render
from chart.test_rendering import CEILINGS, EVERY_RENDER
from doubles.operator_cluster import wait_for_crd
from doubles.server import wait_until

pytestmark = pytest.mark.cluster

SERVER: Mapping[str, Any] = {
    "model": {"source": "file:///models/a"},
    "contextLength": 2_000_000,
    "maxOutput": {"limit": 4096},
    "runningSlots": 16,
    "replicas": 4,
}
SERVER_KIND = {"apiVersion": "plimsoll.dev/v1alpha1", "kind": "InferenceServer"}


@pytest.fixture(scope="module")
def with_ceilings(cluster: Cluster, render: Render) -> Cluster:
    """The server `old` is from before the ceilings, and above all of them."""
    objects = render(CEILINGS)
    apply(cluster, [each for each in objects if each["kind"] == "CustomResourceDefinition"])
    wait_for_crd(cluster)
    apply(cluster, [server("old", {"contextLength": 9_000_000, "replicas": 9})])
    apply(cluster, [each for each in objects if each["kind"].startswith("ValidatingAdmissionPolicy")])
    beyond = [server("trial", {"replicas": 5}), server("trial", {"runningSlots": 17})]
    wait_until(lambda: all(refusal(cluster, each) for each in beyond), seconds=60)
    return cluster


def server(name: str, changes: Mapping[str, Any], namespace: str = "a") -> dict[str, Any]:
    """A server at every ceiling, with changes; None takes a field away."""
    spec = {key: value for key, value in {**SERVER, **changes}.items() if value is not None}
    return {**SERVER_KIND, "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def apply(cluster: Cluster, objects: Sequence[Mapping[str, Any]], *options: str) -> None:
    document = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    cluster.kubectl("apply", "--server-side", "--validate=strict", *options, "--filename=-", stdin=document)


def refusal(cluster: Cluster, document: Mapping[str, Any]) -> str:
    """What the API server says against it, empty when it would take it."""
    try:
        apply(cluster, [document], "--dry-run=server")
    except ClusterError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", EVERY_RENDER)
def test_every_render_is_accepted_strictly(name: str, cluster: Cluster, render: Render) -> None:
    objects = [each for each in render(EVERY_RENDER[name]) if each["kind"] != "ServiceMonitor"]
    apply(cluster, objects, "--dry-run=server")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ""),
        ({"contextLength": 2_000_001}, "spec.contextLength 2000001 is above the ceiling 2000000 of this cluster"),
        ({"contextLength": None}, "spec.contextLength has to be set, to 2000000 at most"),
        ({"maxOutput": {"limit": 4097}}, "spec.maxOutput.limit 4097 is above the ceiling 4096"),
        ({"maxOutput": {"default": 7}}, "spec.maxOutput.limit has to be set, to 4096 at most"),
        ({"maxOutput": None}, "spec.maxOutput.limit has to be set, to 4096 at most"),
        ({"runningSlots": 17}, "spec.runningSlots 17 is above the ceiling 16"),
        ({"replicas": 5}, "spec.replicas 5 is above the ceiling 4"),
    ],
)
def test_a_ceiling_is_refused_one_step_above(changes: Mapping[str, Any], expected: str, with_ceilings: Cluster) -> None:
    said = refusal(with_ceilings, server("new", changes))
    assert (expected in said) if expected else said == ""


def test_exempt_namespaces_have_no_ceilings(with_ceilings: Cluster) -> None:
    assert refusal(with_ceilings, server("new", {"replicas": 5, "contextLength": None}, "lab")) == ""


def test_scaling_is_under_the_ceiling_too(with_ceilings: Cluster) -> None:
    apply(with_ceilings, [server("scaled", {"replicas": 1})])
    with_ceilings.kubectl("scale", "--namespace=a", "infsrv/scaled", "--replicas=4")
    with pytest.raises(ClusterError, match=r"spec\.replicas 5 is above the ceiling 4"):
        with_ceilings.kubectl("scale", "--namespace=a", "infsrv/scaled", "--replicas=5")


def test_what_was_there_before_may_be_annotated_and_only_lowered(with_ceilings: Cluster) -> None:
    with_ceilings.kubectl("annotate", "--namespace=a", "infsrv/old", "note=x")
    with pytest.raises(ClusterError, match="is above the ceiling"):
        with_ceilings.kubectl("scale", "--namespace=a", "infsrv/old", "--replicas=8")
    with_ceilings.kubectl("scale", "--namespace=a", "infsrv/old", "--replicas=4")
