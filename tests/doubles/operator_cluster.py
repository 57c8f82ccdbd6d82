"""A namespace of a real API server in which the operator's hands are tried: made, changed by users, read.

No controllers and no nodes run there, so what they would report is written by `deployment_reports` and `add_pod`.
"""

import itertools
import json
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from plimsoll_cluster import Cluster as RunningCluster

from plimsoll_operator import names
from plimsoll_operator.cluster import CHILDREN, EVENT, POD, SERVER, Cluster, Json, Kind, connect
from plimsoll_operator.desired import OperatorSettings
from plimsoll_operator.reconcile import Outcome, Reconciler
from plimsoll_operator.replica_readings import ReplicaReadings
from plimsoll_runtime.contract.endpoints import BUDGET, DEFAULT_PORT

SETTINGS = OperatorSettings(runtime_image="example/runtime:1")
KINDS: Mapping[str, Kind] = {kind.kind: kind for kind in (*CHILDREN, POD, SERVER, EVENT)}
SPEC: Mapping[str, Any] = {
    "model": {"source": "file:///models/tiny"},
    "contextLength": 2048,
    "maxOutput": {"default": 512, "limit": 1024},
    "overBudget": "Clamp",
    "runningSlots": 4,
}
_NUMBERS = itertools.count(1)


@dataclass(slots=True)
class Site:
    """One namespace, and an operator that works when `reconcile` is called."""

    running: RunningCluster
    namespace: str = ""
    writes: list[tuple[str, str]] = field(default_factory=list)
    cluster: Cluster = field(init=False)
    operator: Reconciler = field(init=False)

    def __post_init__(self) -> None:
        self.namespace = self.namespace or f"site-{next(_NUMBERS)}"
        self.running.kubectl("create", "namespace", self.namespace)
        self.restart_operator()

    def restart_operator(self, settings: OperatorSettings = SETTINGS) -> None:
        """A new process remembers nothing."""
        self.cluster = connect(self.running.kubeconfig, lambda verb, kind: self.writes.append((verb, kind)))
        self.operator = Reconciler(self.cluster, ReplicaReadings(ThreadPoolExecutor(4)), settings)

    def reconcile(self, name: str = "tiny") -> Outcome:
        return self.operator.reconcile(self.namespace, name)

    def settle(self, name: str = "tiny") -> None:
        """Reconcile until nothing is written any more; raises when that does not come."""
        for _ in range(4):
            if self.reconcile(name) in (Outcome.SETTLED, Outcome.BLOCKED, Outcome.INVALID):
                return
        raise AssertionError(f"{name} is written again and again: {self.writes[-6:]}")

    def user_applies(self, name: str = "tiny", *, without: tuple[str, ...] = (), **changes: Any) -> None:
        """The server with SPEC, laid over with changes."""
        spec = {key: value for key, value in {**SPEC, **changes}.items() if key not in without}
        self.user_applies_object(
            {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": spec,
            }
        )

    def user_applies_object(self, document: Mapping[str, Any]) -> None:
        words = ("apply", "--server-side", "--field-manager=kubectl", "--force-conflicts", "--filename=-")
        self.running.kubectl(*words, stdin=json.dumps(document))

    def kubectl(self, *words: str) -> str:
        return self.running.kubectl(*words, f"--namespace={self.namespace}")

    def get(self, kind: str, name: str = "tiny") -> Json:
        """Raises when it is not there."""
        found = self.cluster.read(KINDS[kind], self.namespace, name)
        assert found is not None, f"there is no {kind} {self.namespace}/{name}"
        return found

    def children(self) -> dict[str, Json]:
        """`Kind/name` of every child."""
        found = [each for kind in CHILDREN for each in self.cluster.list_all(kind, self.namespace)]
        return {f"{each['kind']}/{each['metadata']['name']}": each for each in found}

    def versions(self, name: str = "tiny") -> dict[str, str]:
        """The resource version of the server and of every child."""
        objects = {**self.children(), "server": self.get(names.KIND, name)}
        return {key: each["metadata"]["resourceVersion"] for key, each in objects.items()}

    def condition(self, kind: str = names.CONDITION_READY, name: str = "tiny") -> Json:
        conditions = self.get(names.KIND, name)["status"]["conditions"]
        found: Json = next(each for each in conditions if each["type"] == kind)
        return found

    def events(self) -> list[Json]:
        return self.cluster.list_all(EVENT, self.namespace)

    def deployment_reports(self, replicas: int, ready: int, name: str = "tiny", **status: Any) -> None:
        """What the Deployment's controller would write."""
        generation = self.get("Deployment", name)["metadata"]["generation"]
        numbers = {"replicas": replicas, "updatedReplicas": replicas, "readyReplicas": ready}
        numbers |= {"availableReplicas": ready, "observedGeneration": generation}
        self._patch_status("deployment", name, {**numbers, **status})

    def add_pod(self, pod: str, address: str, name: str = "tiny") -> None:
        """A ready pod of the Deployment's present template, as ReplicaSet and kubelet would make it."""
        template = self.get("Deployment", name)["spec"]["template"]
        containers = [{"name": names.CONTAINER, "image": "example/runtime:1"}]
        spec = {"serviceAccountName": name, "automountServiceAccountToken": False, "containers": containers}
        metadata = {**template["metadata"], "name": pod, "namespace": self.namespace}
        self.cluster.create(POD, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        state = {"name": names.CONTAINER, "image": "example/runtime:1", "imageID": "1", "restartCount": 0}
        state |= {"ready": True, "started": True, "state": {"running": {}}}
        ready = {"type": "Ready", "status": "True"}
        self._patch_status(
            "pod",
            pod,
            {
                "phase": "Running",
                "podIP": address,
                "podIPs": [{"ip": address}],
                "conditions": [ready],
                "containerStatuses": [state],
            },
        )

    def _patch_status(self, kind: str, name: str, status: Mapping[str, Any]) -> None:
        patch = json.dumps({"status": status})
        self.kubectl("patch", kind, name, "--subresource=status", "--type=merge", f"--patch={patch}")


def wait_for_crd(cluster: RunningCluster) -> None:
    """Until our kind is served. `kubectl wait` fails where it looks before the CRD has any condition."""
    end = time.monotonic() + 60
    while not _is_served(json.loads(cluster.kubectl("get", "crd", f"{names.PLURAL}.{names.GROUP}", "--output=json"))):
        assert time.monotonic() < end, "the CRD is not established"
        time.sleep(0.1)


def _is_served(crd: Json) -> bool:
    conditions = (crd.get("status") or {}).get("conditions") or ()
    return any((each["type"], each["status"]) == ("Established", "True") for each in conditions)


@contextmanager
def budget_server(address: str, body: bytes, status: int = 200) -> Iterator[None]:
    """A runtime's `/budget` on a loopback address of its own, which is the address of a pod."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == BUDGET else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Not among a test's output."""

    server = ThreadingHTTPServer((address, DEFAULT_PORT), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
