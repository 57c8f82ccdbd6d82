"""A real API server with our CRD, and nothing else: no controllers, no nodes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from plimsoll_cluster import Cluster, ClusterError, open_control_plane
from plimsoll_cluster.binaries import OF_CONTROL_PLANE, find_binaries

from doubles.operator_cluster import wait_for_crd
from plimsoll_operator.crd import crd


@pytest.fixture(scope="session")
def api() -> Iterator["Api"]:
    if find_binaries(OF_CONTROL_PLANE) is None:
        pytest.skip("cluster: the control plane is not built here: run make cluster-binaries")
    with open_control_plane() as cluster:
        api = Api(cluster)
        api.apply(crd())
        wait_for_crd(cluster)
        yield api


class Api:
    """kubectl with documents instead of files."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def apply(self, *documents: Mapping[str, Any], options: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Server-side apply as the operator does it; returns what the API server made of it."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})
        words = ("apply", "--server-side", "--field-manager=plimsoll", "--force-conflicts", "--validate=strict")
        said = json.loads(self.cluster.kubectl(*words, *options, "--filename=-", "--output=json", stdin=text))
        items: list[dict[str, Any]] = said["items"] if said["kind"] == "List" else [said]
        return items

    def refusal(self, document: Mapping[str, Any]) -> str:
        """What the API server says against it, empty when it would take it."""
        try:
            self.apply(document, options=["--dry-run=server"])
        except ClusterError as error:
            return str(error)
        return ""

    def get(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.cluster.kubectl("get", kind, name, "--output=json"))
        return found
