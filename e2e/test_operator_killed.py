"""The operator is killed in the middle of a rollout and comes back: it ends as declared, and nothing else restarts."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from live_site import Site
from operator_pod import kill_operator

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

CHANGED: Mapping[str, Any] = {"replicas": 2, "maxOutput": {"default": 100, "limit": 1024}}


def revisions(site: Site) -> set[str]:
    """The pod-template hash of every ReplicaSet."""
    listed = site.kubectl("get", "replicasets", "--selector=plimsoll.dev/server=smollm2", "--output=json")
    return {each["metadata"]["labels"]["pod-template-hash"] for each in json.loads(listed)["items"]}


def is_in_the_middle(site: Site) -> bool:
    """The new pod template is taken up, and not every replica has it."""
    status = site.get("deployment", "smollm2")["status"]
    updated, replicas = int(status.get("updatedReplicas", 0)), int(status.get("replicas", 0))
    return updated > 0 and replicas > updated


def test_a_killed_operator_restarts_nothing(site: Site) -> None:
    """B109. Before, an operator that came back rolled every server again."""
    site.apply(replicas=2)
    site.wait_ready()
    site.apply(**CHANGED)
    site.wait(lambda: is_in_the_middle(site), lambda: "the rollout does not begin")
    begun = revisions(site)
    assert len(begun) == 2
    kill_operator(site.cluster)
    site.wait_ready()
    assert revisions(site) == begun
    pods = site.identities()
    assert sorted(pods.values()) == [0, 0]
    assert [replica["consistent"] for replica in site.server()["status"]["replicaBudgets"]] == [True, True]
    kill_operator(site.cluster)
    # It has looked at this server when it has taken up a change that restarts nothing.
    site.apply(**CHANGED, rollout={"maxSurge": 1, "maxUnavailable": 1})
    site.wait_ready()
    assert site.identities() == pods
    assert revisions(site) == begun
