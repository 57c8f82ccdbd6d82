"""The chart as a release: what an upgrade and an end leave alone, one that may see one namespace only, `helm test`."""

import itertools
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from plimsoll_cluster import Cluster, ClusterError

from live_site import SYSTEM, Site
from operator_pod import operator_away
from release import CHART, install

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

RELEASE = "narrow"
OWN = "e2e-narrow-system"
WATCHED, OTHER = "e2e-narrow-watched", "e2e-narrow-other"
CHILDREN = "deployment,service,serviceaccount,networkpolicy,poddisruptionbudget"
OF_SERVER = "--selector=plimsoll.dev/server=smollm2"
Use = tuple[str, str, str]
"""(API group, resource, verb)."""
# Asked for by server-side apply of an object that is not there; the log says patch.
BY_APPLY = {
    *itertools.product(("",), ("services", "serviceaccounts", "persistentvolumeclaims"), ("create",)),
    ("apps", "deployments", "create"),
    ("networking.k8s.io", "networkpolicies", "create"),
    ("policy", "poddisruptionbudgets", "create"),
}
# Asked for by an admission plugin, which the embedded cluster has; the log does not say it.
BY_ADMISSION = {("plimsoll.dev", "inferenceservers/finalizers", "update")}


@pytest.fixture
def older_chart(tmp_path: Path) -> str:
    """The chart before there was `spec.kvCache`."""
    folder = tmp_path / "plimsoll"
    shutil.copytree(CHART, folder)
    crd_file = folder / "files" / "inferenceservers.yaml"
    crd = yaml.safe_load(crd_file.read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["kvCache"]
    rules = spec["x-kubernetes-validations"]
    spec["x-kubernetes-validations"] = [rule for rule in rules if "kvCache" not in rule["rule"]]
    crd_file.write_text(yaml.safe_dump(crd))
    return str(folder)


def test_an_upgrade_brings_the_new_field_and_an_end_keeps_what_runs(site: Site, older_chart: str) -> None:
    """B126, B109. Elsewhere the CRD stayed as it was first installed, or took every server with it."""
    cluster = site.cluster
    install(cluster, chart=older_chart)
    with pytest.raises(ClusterError, match="kvCache"):
        site.apply()
    site.apply(kvCache=None)
    site.wait_ready()
    pods = site.identities()
    install(cluster)
    site.apply(kvCache=None, rollout={"maxSurge": 1, "maxUnavailable": 1})  # handled by the new operator
    site.wait_ready()
    assert site.identities() == pods
    site.apply()
    site.wait_ready()
    pods = site.identities()
    try:
        cluster.helm("uninstall", "plimsoll", f"--namespace={SYSTEM}", "--wait")
        assert site.identities() == pods
        assert site.budget()["admitted"] is True
        assert site.server()["spec"]["kvCache"]["maxTokens"] == 16384
    finally:
        install(cluster)
    site.apply(rollout={"maxSurge": 1, "maxUnavailable": 1})
    site.wait_ready()
    assert site.identities() == pods


@dataclass(frozen=True, slots=True)
class Narrow:
    """The release as it stands, and what was in the other namespace while no other operator worked."""

    watched: Site
    in_other: str
    other: Mapping[str, Any]


@pytest.fixture(scope="module")
def narrow(cluster: Cluster) -> Iterator[Narrow]:
    """The release for every namespace stands still until the one for a single namespace has done its work."""
    for namespace in (OWN, WATCHED, OTHER):
        cluster.kubectl("create", "namespace", namespace)
    watched, other = Site(cluster, WATCHED), Site(cluster, OTHER)
    with operator_away(cluster):
        values = (f"watchNamespaces={{{WATCHED}}}", "crds.install=false", "probe.server=smollm2")
        install(cluster, *values, f"probe.namespace={WATCHED}", release=RELEASE, namespace=OWN)
        other.apply()
        lead_a_full_life(watched)
        seen = Narrow(watched, other.kubectl("get", CHILDREN, OF_SERVER, "--output=name"), other.server())
    yield seen
    for site in (other, watched):
        site.kubectl("delete", "infsrv", "--all", "--timeout=60s")
    cluster.helm("uninstall", RELEASE, f"--namespace={OWN}", "--wait")
    cluster.kubectl("delete", "namespace", OWN, WATCHED, OTHER, "--timeout=120s")


def lead_a_full_life(site: Site) -> None:
    """Everything that an operator ever does for a server: children that come and go, a label that is put right."""
    site.apply(replicas=2)
    site.wait_ready()
    pod = site.pods()[0]["metadata"]["name"]
    site.kubectl("label", "pod", pod, "plimsoll.dev/routable-")
    site.wait(lambda: site.get("pod", pod)["metadata"]["labels"].get("plimsoll.dev/routable") is not None, lambda: pod)
    site.apply(replicas=1)
    site.wait(lambda: site.kubectl("get", "pdb", "--output=name") == "", lambda: "the budget of disruptions stays")
    site.wait_ready()
    source = {"source": "hf://org/tiny", "servedName": "cached"}
    claims = ["get", "persistentvolumeclaims", "--output=name"]
    site.apply("cached", model=source, modelCache={"size": "1Gi", "storageClassName": "nosuch"})
    site.wait(lambda: site.kubectl(*claims) != "", lambda: "no cache comes")
    site.apply("cached", suspend=True)
    site.wait(lambda: site.kubectl(*claims) == "", lambda: "the cache stays")
    site.kubectl("delete", "infsrv/cached", "--timeout=60s")


def test_a_namespaced_release_works_in_its_namespace_and_leaves_others(narrow: Narrow) -> None:
    """B129. Before, it listed namespaces or CRDs of the cluster, and was refused for minutes."""
    assert narrow.watched.condition("Ready")["status"] == "True"
    assert narrow.in_other == ""
    assert "status" not in narrow.other
    mine = f"--selector=app.kubernetes.io/instance={RELEASE}"
    assert narrow.watched.cluster.kubectl("get", "clusterrole,clusterrolebinding", mine, "--output=name") == ""


def test_helm_test_asks_every_route(narrow: Narrow) -> None:
    told = narrow.watched.cluster.helm("test", RELEASE, f"--namespace={OWN}", "--logs", "--timeout=120s")
    assert "one answer on every route" in told
    assert "Succeeded" in told


def test_what_is_granted_is_what_is_used(narrow: Narrow) -> None:
    """B129. Nothing is refused, nothing is a wildcard, no Secret is read, and there is no right that nothing needs."""
    cluster = narrow.watched.cluster
    if cluster.state is None:
        pytest.skip("cluster: only the embedded one has an audit log to read")
    requests = audited(cluster)
    refused = [request["requestURI"] for request in requests if request["responseStatus"]["code"] in (401, 403)]
    assert refused == []
    assert {request["objectRef"].get("namespace") for request in requests if "objectRef" in request} == {WATCHED}
    used, granted = uses(requests), rights(narrow.watched)
    assert used <= granted
    assert not [right for right in granted if "*" in right or "secrets" in right]
    assert granted - used - BY_APPLY - BY_ADMISSION == set()


def audited(cluster: Cluster) -> list[dict[str, Any]]:
    """What the operator of the release asked the API server."""
    user = f"system:serviceaccount:{OWN}:{RELEASE}-plimsoll"
    lines = map(json.loads, cluster.audit_log.read_text().splitlines())
    return [line for line in lines if line["user"].get("username") == user]


def uses(requests: list[dict[str, Any]]) -> set[Use]:
    found = set()
    for request in requests:
        if "objectRef" not in request:  # discovery, which everyone may read
            continue
        asked = request["objectRef"]
        resource = "/".join(asked[part] for part in ("resource", "subresource") if part in asked)
        found.add((asked.get("apiGroup", ""), resource, request["verb"]))
    return found


def rights(site: Site) -> set[Use]:
    rules = [
        rule
        for role in json.loads(site.kubectl("get", "roles", "--output=json"))["items"]
        if role["metadata"]["labels"].get("app.kubernetes.io/instance") == RELEASE
        for rule in role["rules"]
    ]
    triples = (itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"]) for rule in rules)
    return set(itertools.chain.from_iterable(triples))
