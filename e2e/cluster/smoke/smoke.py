"""Shows that the embedded cluster is a cluster: an image built here runs, is found by name, and is reached.

Each step prints what it saw; the first that fails ends the program with the error.
"""

import json
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from plimsoll_cluster import Cluster, ClusterError, images, open_cluster

HERE = Path(__file__).resolve().parent
IMAGE = "localhost/plimsoll/smoke:1"
_ASK = "import urllib.request; print(urllib.request.urlopen('http://echo.smoke.svc:8000', timeout=5).read().decode())"


def main() -> None:
    images.build_image(HERE / "Containerfile", IMAGE)
    with open_cluster() as cluster:
        cluster.load_image(IMAGE)
        cluster.kubectl("apply", "-f", str(HERE / "smoke.yaml"))
        cluster.kubectl("rollout", "status", "deployment/echo", "--namespace=smoke", "--timeout=120s")
        steps = (both_pods_answer, the_name_is_found, what_is_outside_is_not, logs_are_read, events_are_told, helm_runs)
        for step in steps:
            _show(step, cluster)
        cluster.kubectl("delete", "namespace", "smoke", "--timeout=60s")


def both_pods_answer(cluster: Cluster) -> str:
    service = json.loads(cluster.kubectl("get", "service", "echo", "--namespace=smoke", "-o", "json"))
    address = service["spec"]["clusterIP"]
    answers = set()
    for _ in range(40):
        with urllib.request.urlopen(f"http://{address}:8000/", timeout=5) as answer:
            answers.add(answer.read().decode().strip())
    if len(answers) != 2:
        raise ClusterError(f"two pods should answer at {address}, these did: {answers}")
    return f"{address} answers as {sorted(answers)}"


def the_name_is_found(cluster: Cluster) -> str:
    return _in_a_pod(cluster, "/opt/smoke/bin/python", "-c", _ASK)


def what_is_outside_is_not(cluster: Cluster) -> str:
    ask = "import socket\ntry: socket.getaddrinfo('outside.example', 80)\nexcept socket.gaierror as no: print(no)"
    return _in_a_pod(cluster, "/opt/smoke/bin/python", "-c", ask)


def logs_are_read(cluster: Cluster) -> str:
    return cluster.kubectl("logs", "deployment/echo", "--namespace=smoke", "--tail=1")


def events_are_told(cluster: Cluster) -> str:
    return cluster.kubectl("events", "--namespace=smoke")


def helm_runs(cluster: Cluster) -> str:
    return cluster.helm("version") + cluster.helm("list", "--all-namespaces")


def _in_a_pod(cluster: Cluster, *command: str) -> str:
    return cluster.kubectl("exec", "deployment/echo", "--namespace=smoke", "--", *command)


def _show(step: Callable[[Cluster], str], cluster: Cluster) -> None:
    print(f"{step.__name__.replace('_', ' ')}: {step(cluster).strip()}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except ClusterError as error:
        sys.exit(f"smoke: {error}")
