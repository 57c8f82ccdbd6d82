"""The operator's pod: killed, sent away, called back, and known by its identity."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plimsoll_cluster import Cluster

from live_site import OPERATOR, SYSTEM

_RETURN_SECONDS = 120
_OF_OPERATOR = ("--selector=plimsoll.dev/operator=true", f"--namespace={SYSTEM}")


def kill_operator(cluster: Cluster) -> None:
    """SIGKILL, and back when a new process works. Of another cluster's node the pod is taken away without grace."""
    (pod,) = _pods(cluster)
    before = _identity(pod)
    if cluster.state is None:
        name = pod["metadata"]["name"]
        cluster.kubectl("delete", "pod", name, f"--namespace={SYSTEM}", "--force", "--grace-period=0")
    else:
        os.kill(_process_of(pod), signal.SIGKILL)
    end = time.monotonic() + _RETURN_SECONDS
    while not any(_identity(each) != before and _is_ready(each) for each in _pods(cluster)):
        assert time.monotonic() < end, "the operator does not come back"
        time.sleep(0.5)


@contextlib.contextmanager
def operator_away(cluster: Cluster) -> Iterator[None]:
    """While the block runs no operator does."""
    scale_operator(cluster, 0)
    try:
        yield
    finally:
        scale_operator(cluster, 1)


def scale_operator(cluster: Cluster, replicas: int) -> None:
    """Returns when so many work."""
    cluster.kubectl("scale", OPERATOR, f"--namespace={SYSTEM}", f"--replicas={replicas}")
    if replicas == 0:
        cluster.kubectl("wait", "--for=delete", "pods", *_OF_OPERATOR, f"--timeout={_RETURN_SECONDS}s")
    cluster.kubectl("rollout", "status", OPERATOR, f"--namespace={SYSTEM}", f"--timeout={_RETURN_SECONDS}s")


def _pods(cluster: Cluster) -> list[dict[str, Any]]:
    listed = cluster.kubectl("get", "pods", *_OF_OPERATOR, "--output=json")
    return [pod for pod in json.loads(listed)["items"] if "deletionTimestamp" not in pod["metadata"]]


def _identity(pod: dict[str, Any]) -> tuple[str, int]:
    """Of the process: a container that is started anew stays in its pod."""
    return pod["metadata"]["uid"], sum(each["restartCount"] for each in pod["status"].get("containerStatuses", ()))


def _is_ready(pod: dict[str, Any]) -> bool:
    return any(each["ready"] for each in pod["status"].get("containerStatuses", ()))


def _process_of(pod: dict[str, Any]) -> int:
    """On this machine, whose kernel the node of the embedded cluster shares."""
    container = pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
    for cgroup in Path("/proc").glob("[0-9]*/cgroup"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if container in cgroup.read_text():
                return int(cgroup.parent.name)
    raise AssertionError(f"no process of the container {container}")
