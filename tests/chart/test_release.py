"""The life of a release on a real API server: an older chart, an upgrade, changed values, a second release, an end."""

import json
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from plimsoll_cluster import Cluster, ClusterError

from chart.conftest import CHART
from chart.test_api_server import apply, server
from doubles.operator_cluster import wait_for_crd

pytestmark = pytest.mark.cluster

NEW_FIELD = {"kvCache": {"maxTokens": 4_000_000}}
KEEP_VALUES = "--reset-then-reuse-values"
CRD = "inferenceservers.plimsoll.dev"


@pytest.fixture(scope="module")
def older_chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart before `spec.kvCache` and the log's level were there."""
    folder = tmp_path_factory.mktemp("older") / "plimsoll"
    shutil.copytree(CHART, folder)
    crd_file = folder / "files" / "inferenceservers.yaml"
    crd = yaml.safe_load(crd_file.read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["kvCache"]
    spec["x-kubernetes-validations"] = [
        rule for rule in spec["x-kubernetes-validations"] if "kvCache" not in rule["rule"]
    ]
    crd_file.write_text(yaml.safe_dump(crd))
    for name, old, new in [("Chart.yaml", "version: 0.1.0", "version: 0.0.9"), ("values.yaml", "  level: info", "  #")]:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))
    (folder / "values.schema.json").unlink()
    template = folder / "templates" / "deployment.yaml"
    template.write_text(template.read_text().replace("            - --log-level={{ .Values.log.level }}\n", ""))
    return folder


@pytest.fixture(scope="module")
def release(cluster: Cluster, older_chart: Path, helm_program: Path) -> Cluster:
    """`rel` in `sys`, upgraded from the older chart as the README says, with a server that was there before."""
    cluster.helm("install", "rel", str(older_chart), "--namespace=sys")
    wait_for_crd(cluster)
    apply(cluster, [server("kept", {})])
    with pytest.raises(ClusterError, match="kvCache"):
        apply(cluster, [server("kept", NEW_FIELD)])
    with pytest.raises(ClusterError, match="at '/log': missing property 'level'"):
        cluster.helm("upgrade", "rel", str(CHART), "--namespace=sys", "--reuse-values")
    cluster.helm("upgrade", "rel", str(CHART), "--namespace=sys", KEEP_VALUES)
    wait_for_crd(cluster)
    return cluster


def read(cluster: Cluster, kind: str, name: str, namespace: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cluster.kubectl("get", kind, name, f"--namespace={namespace}", "--output=json"))
    return found


def generation(cluster: Cluster) -> int:
    return int(read(cluster, "deployment", "rel-plimsoll", "sys")["metadata"]["generation"])


def test_b126_an_upgrade_brings_the_field_that_is_new(release: Cluster) -> None:
    """Elsewhere the CRD stayed as it was first installed, and the new field was pruned without a word."""
    apply(release, [server("kept", NEW_FIELD)])
    assert read(release, "infsrv", "kept", "a")["spec"]["kvCache"]["maxTokens"] == 4_000_000


def test_b128_a_change_of_values_restarts_the_operator_once(release: Cluster) -> None:
    before = generation(release)
    for _ in range(2):
        release.helm("upgrade", "rel", str(CHART), "--namespace=sys", KEEP_VALUES, "--set=log.level=debug")
        assert generation(release) == before + 1
    release.helm("upgrade", "rel", str(CHART), "--namespace=sys", KEEP_VALUES, "--set=probe.server=kept")
    assert generation(release) == before + 1


def test_b126_a_second_release_leaves_the_crd_to_the_first(release: Cluster) -> None:
    with pytest.raises(ClusterError, match=rf"{CRD}.*cannot be imported"):
        release.helm("install", "second", str(CHART), "--namespace=b")
    values = "--set=crds.install=false,watchNamespaces={b}"
    release.helm("install", "second", str(CHART), "--namespace=b", values)
    release.helm("uninstall", "second", "--namespace=b")
    assert read(release, "infsrv", "kept", "a")["metadata"]["name"] == "kept"


def test_b126_an_end_keeps_the_servers_and_a_new_beginning_finds_them(release: Cluster) -> None:
    release.helm("uninstall", "rel", "--namespace=sys")
    assert release.kubectl("get", "deployment", "--namespace=sys", "--output=name") == ""
    uid = read(release, "infsrv", "kept", "a")["metadata"]["uid"]
    notes = release.helm("install", "rel", str(CHART), "--namespace=sys")
    assert read(release, "infsrv", "kept", "a")["metadata"]["uid"] == uid
    assert "watches every namespace" in notes
    example = textwrap.dedent(notes.partition("<<END\n")[2].partition("     END")[0])
    release.kubectl("apply", "--server-side", "--dry-run=server", "--filename=-", stdin=example)
