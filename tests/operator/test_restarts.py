"""What restarts pods and what does not (B109, B110): the config hash, and the template that is kept to the letter."""

import copy
from typing import Any

import pytest

from doubles.operator_objects import ApiServer, pod, server
from plimsoll_operator import names
from plimsoll_operator.desired import OperatorSettings
from plimsoll_operator.spec import config_hash

BASE: dict[str, Any] = {
    "model": {"source": "hf://a/b"},
    "resources": {"requests": {"cpu": "1000m", "memory": "2048Mi"}},
    "env": [{"name": "A", "value": "1000m"}],
    "modelCache": {"size": "1Gi"},
}

RESTARTS: list[tuple[str, dict[str, Any]]] = [
    ("model", {"model": {"source": "hf://a/c"}}),
    ("revision", {"model": {"source": "hf://a/b", "revision": "v2"}}),
    ("servedName", {"model": {"source": "hf://a/b", "servedName": "other"}}),
    ("contextLength", {"contextLength": 64}),
    ("maxOutput", {"maxOutput": {"default": 7}}),
    ("runningSlots", {"runningSlots": 7}),
    ("queue", {"queue": {"maxWaiting": 7}}),
    ("kvCache", {"kvCache": {"maxTokens": 640}}),
    ("overBudget", {"overBudget": "Refuse"}),
    ("image", {"image": "example/other:1"}),
    ("resources", {"resources": {"requests": {"cpu": 2, "memory": "2Gi"}}}),
    ("env", {"env": [{"name": "A", "value": "1"}]}),
    ("accelerator", {"accelerator": {"resource": "nvidia.com/gpu"}}),
    ("nodeSelector", {"nodeSelector": {"a": "b"}}),
    ("drainSeconds", {"drainSeconds": 3}),
    ("apiKeys", {"apiKeysSecretRef": {"name": "s", "key": "k"}}),
    ("scheduling", {"scheduling": {"preset": "Fifo"}}),
    ("fairness", {"fairness": {"by": "None"}}),
    ("deadlines", {"deadlines": {"onDeadline": "Abort"}}),
    ("runaway", {"runaway": {"mode": "Stop"}}),
    ("pausedKV", {"offload": {"pausedKV": "4Gi"}}),
    ("experts", {"offload": {"mode": "Auto"}}),
    ("no-cache", {"modelCache": None}),
]
DOES_NOT: list[tuple[str, dict[str, Any]]] = [
    ("nothing", {}),
    ("replicas", {"replicas": 3}),
    ("suspend", {"suspend": True}),
    ("rollout", {"rollout": {"maxSurge": 2}}),
    ("onBudgetDrift", {"onBudgetDrift": "Exclude"}),
    ("network", {"network": {"from": []}}),
    ("cache-size", {"modelCache": {"size": "2Gi"}}),
    ("B99-amounts-written-otherwise", {"resources": {"requests": {"cpu": 1, "memory": "2Gi"}}}),
    ("word-written-otherwise", {"overBudget": "clamp"}),
    ("scheduling-written-out", {"scheduling": {"preset": "FAIR"}, "fairness": {"by": "api-key"}, "offload": {}}),
    ("default-written-out", {"runningSlots": 4, "queue": {"maxWaiting": 128, "timeoutSeconds": 120}}),
]


def spec_with(change: dict[str, Any]) -> dict[str, Any]:
    spec = {**copy.deepcopy(BASE), **change}
    return {key: value for key, value in spec.items() if value is not None}


@pytest.mark.parametrize("change", [change for _, change in RESTARTS], ids=[f"B110-{name}" for name, _ in RESTARTS])
def test_this_restarts_pods(change: dict[str, Any]) -> None:
    assert config_hash(server(spec_with(change))) != config_hash(server(BASE))


@pytest.mark.parametrize("change", [change for _, change in DOES_NOT], ids=[f"B110-{name}" for name, _ in DOES_NOT])
def test_this_does_not(change: dict[str, Any]) -> None:
    assert config_hash(server(spec_with(change))) == config_hash(server(BASE))


def test_labels_and_annotations_of_the_server_do_not_and_the_restart_annotation_does() -> None:
    decorated = server(BASE, labels={"a": "b"}, annotations={"c": "d"}, generation=9)
    assert config_hash(decorated) == config_hash(server(BASE))
    assert config_hash(server(BASE, annotations={names.ANNOTATION_RESTART: "1"})) != config_hash(server(BASE))


def test_a_newer_operator_restarts_nothing_and_the_next_change_takes_its_image() -> None:
    """B109: upgrading the operator restarted every model in the cluster, because an injected value had changed."""
    cluster, newer = ApiServer(), OperatorSettings(runtime_image="example/runtime:2", hub_endpoint="http://hub:1")
    cluster.reconcile(server(BASE))
    template = copy.deepcopy(cluster.deployment["spec"]["template"])
    cluster.reconcile(server(BASE), newer)
    assert cluster.deployment["spec"]["template"] == template
    cluster.reconcile(server({**BASE, "runningSlots": 7}), newer)
    assert cluster.deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "example/runtime:2"


def test_a_change_taken_back_is_the_same_template_even_under_a_newer_operator() -> None:
    """B110: Kubernetes then goes back to the ReplicaSet that still runs."""
    cluster, newer = ApiServer(), OperatorSettings(runtime_image="example/runtime:2")
    first = server(BASE)
    cluster.reconcile(first)
    cluster.reconcile(first, pods=(pod("a", config_hash(first)),))
    template = copy.deepcopy(cluster.deployment["spec"]["template"])
    cluster.reconcile(server({**BASE, "runningSlots": 7}), newer)
    assert cluster.deployment["spec"]["template"] != template
    cluster.reconcile(first, newer)
    assert cluster.deployment["spec"]["template"] == template


def test_amounts_of_a_setting_written_otherwise_are_the_same() -> None:
    hashes = {config_hash(server(spec_with({"offload": {"pausedKV": each}}))) for each in ("2Gi", "2048Mi", 2**31)}
    assert len(hashes) == 1
