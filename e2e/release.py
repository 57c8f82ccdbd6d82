"""The chart as a release with the images of this checkout: which they are, and how it is installed."""

import json

from plimsoll_cluster import Cluster

from live_site import ROOT, SYSTEM

RUNTIME_IMAGE = "localhost/plimsoll/runtime:dev"
OPERATOR_IMAGE = "localhost/plimsoll/operator:dev"
IMAGES = (RUNTIME_IMAGE, OPERATOR_IMAGE)
VALUES = (
    "image.repository=localhost/plimsoll/operator",
    "image.tag=dev",
    "runtimeImage.repository=localhost/plimsoll/runtime",
    "runtimeImage.tag=dev",
)
CHART = str(ROOT / "charts" / "plimsoll")


def install(
    cluster: Cluster, *values: str, release: str = "plimsoll", namespace: str = SYSTEM, chart: str = CHART
) -> None:
    """Waits until the operator works. A release that is there is brought to these values."""
    settings = [f"--set={value}" for value in (*VALUES, *values)]
    words = ("upgrade", "--install", release, chart, "--create-namespace", f"--namespace={namespace}")
    cluster.helm(*words, *settings, "--wait", "--timeout=120s")


def is_installed(cluster: Cluster, release: str = "plimsoll", namespace: str = SYSTEM) -> bool:
    return release in cluster.helm("list", "--short", f"--namespace={namespace}").split()


def missing_images(cluster: Cluster) -> list[str]:
    """Which of IMAGES no node of the cluster has."""
    nodes = json.loads(cluster.kubectl("get", "nodes", "--output=json"))["items"]
    present = {name for node in nodes for image in node["status"].get("images", ()) for name in image["names"]}
    return [image for image in IMAGES if image not in present]
