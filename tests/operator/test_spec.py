"""Manifests: what a field means as a setting, and that a wrong one is named."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from plimsoll_operator.spec import (
    SPEC_PATHS,
    ManifestError,
    fields_for_clusters,
    read_live,
    read_manifest,
    to_runtime_config,
)
from plimsoll_runtime.contract.config import RuntimeConfig
from plimsoll_runtime.contract.model_source import only_in_cluster
from plimsoll_runtime.contract.values import TenantWeight

SAMPLES = Path(__file__).parents[2] / "crds" / "samples"
MISSING = object()
MINIMAL = {
    "apiVersion": "plimsoll.dev/v1alpha1",
    "kind": "InferenceServer",
    "metadata": {"name": "tiny"},
    "spec": {"model": {"source": "file:///models/tiny"}},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The smallest manifest with one field set, or taken away."""
    document: dict[str, Any] = copy.deepcopy(MINIMAL)
    *parents, last = path.split(".")
    place = document
    for parent in parents:
        place = place.setdefault(parent, {})
    if value is MISSING:
        del place[last]
    else:
        place[last] = value
    return document


def test_what_is_not_set_stays_not_set() -> None:
    server = read_manifest(MINIMAL)
    assert to_runtime_config(server) == RuntimeConfig(model="file:///models/tiny", served_model_name="tiny")
    assert server.replicas == 1


VALUES: dict[str, tuple[Any, Any]] = {
    "model.source": ("package://p/f", "package://p/f"),
    "model.servedName": ("name", "name"),
    "contextLength": (64, 64),
    "maxOutput.default": (7, 7),
    "maxOutput.limit": (9, 9),
    "overBudget": ("Refuse", "refuse"),
    "runningSlots": (2, 2),
    "queue.maxWaiting": (0, 0),
    "queue.timeoutSeconds": (3, 3.0),
    "requestTimeoutSeconds": (2.5, 2.5),
    "scheduling.preset": ("Interactive", "interactive"),
    "scheduling.quantumTokens": (64, 64),
    "scheduling.thresholds": ([256], (256,)),
    "scheduling.weights": ([3, 1], (3, 1)),
    "scheduling.maxWaitSeconds": (30, 30.0),
    "fairness.by": ("None", "none"),
    "fairness.weights": (
        [{"tenant": "1a2b3c4d", "weight": 3}],
        (TenantWeight(tenant="1a2b3c4d", weight=3),),
    ),
    "deadlines.honourClient": (False, False),
    "deadlines.onDeadline": ("Abort", "abort"),
    "runaway.mode": ("Off", "off"),
    "offload.mode": ("Experts", "experts"),
    "offload.expertCache": ("2Gi", 2 * 2**30),
    "offload.pausedKV": ("4Gi", 4 * 2**30),
    "kvCache.maxTokens": (640, 640),
    "kvCache.prefixCaching": (False, False),
    "sampling.defaults": ("Neutral", "neutral"),
    "parsers.reasoning": ("Qwen3", "qwen3"),
    "parsers.toolCalls": ("Qwen3_Coder", "qwen3_coder"),
    "drainSeconds": (5, 5.0),
}


@pytest.mark.parametrize("path", SPEC_PATHS)
def test_every_field_reaches_its_setting(path: str) -> None:
    given, expected = VALUES[path]
    config = to_runtime_config(read_manifest(changed(f"spec.{path}", given)), api_key_file="/keys", offload="experts")
    assert getattr(config, SPEC_PATHS[path]) == expected


@pytest.mark.parametrize(
    ("path", "value"),
    [
        # B18: a context length of 0 was accepted, and the scheduler ran with negative counts.
        pytest.param("spec.contextLength", 0, id="B18-context-zero"),
        pytest.param("spec.contextLength", -1, id="B18-context-negative"),
        pytest.param("spec.contextLength", "4k", id="B18-context-word"),
        pytest.param("spec.contextLength", "4096", id="B18-context-text"),
        pytest.param("spec.contextLength", 4096.0, id="B18-context-fraction"),
        pytest.param("spec.contextLength", True, id="B18-context-boolean"),
        pytest.param("spec.maxOutput.default", 0, id="B18-default-zero"),
        pytest.param("spec.maxOutput.limit", 0, id="B18-limit-zero"),
        pytest.param("spec.runningSlots", 0, id="B18-slots-zero"),
        pytest.param("spec.runningSlots", None, id="slots-null"),
        pytest.param("spec.queue.timeoutSeconds", "120", id="seconds-text"),
        pytest.param("spec.queue.timeoutSeconds", float("nan"), id="seconds-nan"),
        pytest.param("spec.kvCache.prefixCaching", "yes", id="switch-text"),
        pytest.param("spec.overBudget", "Drop", id="word"),
        pytest.param("spec.model.source", "/models/tiny", id="bare-path"),
        pytest.param("spec.model.source", "hf://org/name", id="source-not-built"),
        pytest.param("spec.model.servedName", "", id="empty-name"),
        pytest.param("spec.replicas", -1, id="replicas-negative"),
        pytest.param("spec.queue", 3, id="number-for-a-group"),
        pytest.param("spec.contextlength", 64, id="misspelt"),
        pytest.param("spec.autoscaling", {"min": 1}, id="field-not-built"),
        pytest.param("spec.model.source", MISSING, id="no-source"),
        pytest.param("spec.model", MISSING, id="no-model"),
        pytest.param("spec", MISSING, id="no-spec"),
        pytest.param("metadata.name", "Tiny", id="name-capital"),
        pytest.param("metadata.name", "a" * 41, id="name-long"),
        pytest.param("metadata.name", "tiny\n", id="name-line-end"),
        pytest.param("metadata.name", MISSING, id="no-name"),
    ],
)
def test_a_wrong_field_is_named(path: str, value: Any) -> None:
    with pytest.raises(ManifestError) as fault:
        to_runtime_config(read_manifest(changed(path, value)))
    assert str(fault.value).startswith(path)
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param([], "a manifest is a mapping", id="list"),
        pytest.param("text", "a manifest is a mapping", id="text"),
        pytest.param(changed("kind", "Pod"), "kind Pod was given", id="other-kind"),
        pytest.param(changed("apiVersion", "plimsoll.dev/v1"), "plimsoll.dev/v1, kind", id="other-version"),
    ],
)
def test_another_document_is_refused(document: Any, expected: str) -> None:
    with pytest.raises(ManifestError) as fault:
        read_manifest(document)
    assert expected in str(fault.value)


def test_fields_that_contradict_each_other_are_refused_with_both() -> None:
    document = changed("spec.maxOutput.default", 512)
    document["spec"]["contextLength"] = 512
    with pytest.raises(ManifestError) as fault:
        to_runtime_config(read_manifest(document))
    assert "spec.maxOutput.default" in str(fault.value)
    assert "spec.contextLength" in str(fault.value)


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_samples_are_valid(sample: Path) -> None:
    for document in yaml.safe_load_all(sample.read_text(encoding="utf-8")):
        server = read_manifest(document)
        if only_in_cluster(server.source) is None:
            to_runtime_config(server)
        else:
            to_runtime_config(server, model="/models")  # as a pod is told


@pytest.mark.parametrize("source", ["hf://org/name", "pvc://claim/path", "oci://image:tag/path"])
def test_a_source_that_only_a_cluster_has_needs_a_path_from_the_pod(source: str) -> None:
    server = read_manifest(changed("spec.model.source", source))
    with pytest.raises(ManifestError) as fault:
        to_runtime_config(server)
    assert str(fault.value).startswith(f"spec.model.source: {source.partition(':')[0]}://")
    assert "file:///path" in str(fault.value)
    assert to_runtime_config(server, model="/models/m").model == "/models/m"


def test_a_live_object_is_read_without_what_the_api_server_adds() -> None:
    document: dict[str, Any] = {**copy.deepcopy(MINIMAL), "status": {"replicas": 1}}
    document["metadata"] |= {"uid": "u", "generation": 4, "resourceVersion": "9", "managedFields": [], "finalizers": []}
    server = read_live(document)
    assert (server.metadata.uid, server.metadata.generation, server.name) == ("u", 4, "tiny")


def test_fields_for_clusters_are_named() -> None:
    document = changed("spec.resources", {"limits": {"cpu": 1}})
    document["spec"] |= {"replicas": 2, "network": {"from": []}, "contextLength": 8}
    assert fields_for_clusters(read_manifest(document)) == ["spec.replicas", "spec.resources", "spec.network.from"]
