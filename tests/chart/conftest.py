"""Helm, where it is built: `render` makes objects from values without a cluster; `cluster` is an API server alone."""

import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from plimsoll_cluster import Cluster, open_control_plane
from plimsoll_cluster.binaries import OF_CONTROL_PLANE, find_binaries

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "plimsoll"

Objects = list[dict[str, Any]]
Template = Callable[[Mapping[str, Any]], "subprocess.CompletedProcess[str]"]
Render = Callable[[Mapping[str, Any]], Objects]


@pytest.fixture(scope="session")
def helm_program() -> Path:
    folder = find_binaries(frozenset({"helm"}))
    if folder is None:
        pytest.skip("cluster: Helm is not built here: run make cluster-binaries")
    return folder / "helm"


@pytest.fixture(scope="session")
def template(helm_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Template:
    """Runs `helm template` for a release `rel` in the namespace `sys`."""
    folder = tmp_path_factory.mktemp("helm")
    environment = {name: str(folder) for name in ("HOME", "HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")}

    def run(values: Mapping[str, Any]) -> "subprocess.CompletedProcess[str]":
        file = folder / "values.yaml"
        file.write_text(yaml.safe_dump(dict(values)))
        words = [str(helm_program), "template", "rel", str(CHART), "--namespace", "sys", "--values", str(file)]
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="session")
def render(template: Template) -> Render:
    """The objects that a release with these values consists of, its test included."""

    def objects(values: Mapping[str, Any]) -> Objects:
        done = template(values)
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.safe_load_all(done.stdout) if document]

    return objects


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if find_binaries(OF_CONTROL_PLANE) is None:
        pytest.skip("cluster: the control plane is not built here: run make cluster-binaries")
    with open_control_plane() as opened:
        for name in ("sys", "a", "b", "lab"):
            opened.kubectl("create", "namespace", name)
        opened.kubectl("create", "serviceaccount", "default", "--namespace=sys")  # no controller makes it here
        yield opened
