"""The CRD before a real kube-apiserver: every rule and bound, explanation, and that applying twice writes nothing."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from doubles.manifests import RIGHT, UNKNOWN, WRONG, manifest, names_all
from doubles.operator_objects import SETTINGS, pod, reading
from operator_api.conftest import Api
from plimsoll_operator.crd import spec_schema
from plimsoll_operator.desired import CHILD_KINDS, desired
from plimsoll_operator.observed import Observed
from plimsoll_operator.plan import plan
from plimsoll_operator.spec import config_hash, read_live
from plimsoll_operator.status import status

pytestmark = pytest.mark.cluster

SAMPLES = sorted((Path(__file__).parents[2] / "crds" / "samples").glob("*.yaml"))
EVERYTHING = {
    "spec.model": {"source": "hf://org/name", "tokenSecretRef": {"name": "hub", "key": "token"}},
    "spec.modelCache": {"size": "1Gi"},
    "spec.replicas": 2,
    "spec.resources": {"requests": {"cpu": "1000m", "memory": "2048Mi"}, "limits": {"memory": "2Gi"}},
    "spec.env": [{"name": "B", "value": ""}, {"name": "A", "value": "1000m"}],
    "spec.accelerator": {"resource": "nvidia.com/gpu"},
    "spec.tolerations": [{"key": "a", "operator": "Equal", "value": "", "effect": "NoSchedule"}],
    "spec.apiKeysSecretRef": {"name": "keys", "key": "lines"},
    "spec.network": {"from": [{"podSelector": {}}]},
    "spec.extraVolumes": [{"name": "v", "mountPath": "/v", "readOnly": False, "emptyDir": {"sizeLimit": "1024Mi"}}],
    "spec.affinity": {"nodeAffinity": {}},
}


@pytest.mark.parametrize(("change", "expected"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_manifest_is_refused_at_apply(api: Api, change: dict[str, Any], expected: tuple[str, ...]) -> None:
    said = api.refusal(manifest(change))
    assert said
    assert names_all(re.sub(r"\[\d+\]", "", said), expected), said


@pytest.mark.parametrize("change", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_an_unknown_field_is_refused_by_a_strict_client(api: Api, change: dict[str, Any]) -> None:
    said = api.refusal(manifest(change))
    assert "unknown field" in said or "field not declared in schema" in said


@pytest.mark.parametrize("change", RIGHT.values(), ids=RIGHT.keys())
def test_a_right_manifest_is_taken(api: Api, change: dict[str, Any]) -> None:
    assert api.refusal(manifest(change)) == ""


def test_defaults_come_from_the_schema_and_change_no_hash(api: Api) -> None:
    (stored,) = api.apply(manifest({"spec.queue": {}}), options=["--dry-run=server"])
    assert stored["spec"]["replicas"] == 1
    assert stored["spec"]["overBudget"] == "Clamp"
    assert stored["spec"]["queue"] == {"maxWaiting": 128, "timeoutSeconds": 120}
    assert "contextLength" not in stored["spec"]
    given = read_live(manifest({}))
    assert config_hash(read_live(stored)) == config_hash(given)


def test_every_field_is_explained(api: Api) -> None:
    text = api.cluster.kubectl("explain", "infsrv.spec", "--recursive")
    for name in spec_schema()["properties"]:
        assert re.search(rf"\b{name}\b", text)
    assert "never divided by running slots" in api.cluster.kubectl("explain", "infsrv.spec.contextLength")


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_a_sample_and_its_objects_are_taken_strictly(api: Api, sample: Path) -> None:
    """An oci:// source needs a newer containerd than the embedded cluster's, so this is where it is proved."""
    for document in yaml.safe_load_all(sample.read_text(encoding="utf-8")):
        document["metadata"].pop("namespace", None)
        assert api.refusal(document) == ""
        for each in desired(read_live(document), SETTINGS):
            assert api.refusal(each) == ""


def test_applying_twice_writes_nothing(api: Api) -> None:
    """B99: what the API server completes and spells its own way made every reconcile a write."""
    (stored,) = api.apply(manifest({"metadata.name": "twice", **EVERYTHING}))
    server = read_live(stored)
    first = plan(server, desired(server, SETTINGS), Observed())
    api.apply(*first.apply)
    kinds = {kind for _, kind in CHILD_KINDS}
    live = tuple(api.get(each["kind"], each["metadata"]["name"]) for each in first.apply)
    assert {each["kind"] for each in live} == kinds
    second = plan(server, desired(server, SETTINGS), Observed(children=live))
    assert second.is_empty, [each["kind"] for each in second.apply]
    others = [each for each in first.apply if each["kind"] != "PersistentVolumeClaim"]  # its version moves regardless
    versions = {each["kind"]: each["metadata"]["resourceVersion"] for each in live}
    for each in api.apply(*others):
        assert each["metadata"]["resourceVersion"] == versions[each["kind"]], each["kind"]


def test_an_autoscaler_s_replicas_are_kept_and_reach_the_deployment(api: Api) -> None:
    """B115: each reconcile set back what the autoscaler had set."""
    api.apply(manifest({"metadata.name": "scaled"}))
    api.cluster.kubectl("scale", "infsrv/scaled", "--replicas=3")
    stored = api.get("infsrv", "scaled")
    assert stored["spec"]["replicas"] == 3
    server = read_live(stored)
    assert next(each for each in desired(server, SETTINGS) if each["kind"] == "Deployment")["spec"]["replicas"] == 3
    (after,) = api.apply(manifest({"metadata.name": "scaled"}))  # as its author does who left replicas out
    assert after["spec"]["replicas"] == 3


def test_the_status_is_stored_as_it_is_written_and_shown_in_columns(api: Api) -> None:
    """B126: fields that the schema does not know would be stripped without a word."""
    (stored,) = api.apply(
        manifest({"metadata.name": "shown", "spec.contextLength": 2048, "spec.maxOutput.limit": 1024})
    )
    server = read_live(stored)
    one = pod("a", config_hash(server))
    observed = Observed(pods=(one,), budgets={"a": reading(running_slots=1)})
    planned = plan(server, desired(server, SETTINGS), observed)
    content = status(server, observed, planned, datetime(2026, 1, 1, tzinfo=UTC))
    patch = json.dumps({"status": content})
    api.cluster.kubectl("patch", "infsrv", "shown", "--subresource=status", "--type=merge", f"--patch={patch}")
    assert api.get("infsrv", "shown")["status"] == content
    header, row = api.cluster.kubectl("get", "infsrv", "shown").splitlines()
    assert header.split() == ["NAME", "READY", "REASON", "REPLICAS", "CONTEXT", "MAX-OUT", "SLOTS", "BUDGET", "AGE"]
    assert row.split()[:8] == ["shown", "False", "Updating", "0", "2048", "1024", "1", "False"]
    assert status(server, replace(observed, previous_status=content), planned, datetime.now(UTC)) == content
