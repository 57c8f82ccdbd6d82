"""One namespace of a cluster with nodes: servers applied, waited for, and read as a user would.

Service addresses must be reachable from this machine, which they are in the embedded cluster.
"""

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from plimsoll_cluster import Cluster

ROOT = Path(__file__).resolve().parents[1]
SAMPLE: Mapping[str, Any] = yaml.safe_load((ROOT / "crds" / "samples" / "smollm2.yaml").read_text())
SERVED_NAME = str(SAMPLE["spec"]["model"]["servedName"])
SYSTEM = "plimsoll-system"
OPERATOR = "deployment/plimsoll"
READY_SECONDS = 400
# Replicas, their neighbours and the tests share the cores of one machine.
ONE_CORE: Mapping[str, Any] = {"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}}
_NUMBERS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Site:
    """One namespace of the cluster."""

    cluster: Cluster
    namespace: str

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        return self.cluster.kubectl(f"--namespace={self.namespace}", *words, stdin=stdin)

    def apply(self, name: str = "smollm2", **changes: Any) -> None:
        """The sample, with changes below its spec; what is changed to None is not in it."""
        spec = {**SAMPLE["spec"], "resources": ONE_CORE, **changes}
        spec = {key: value for key, value in spec.items() if value is not None}
        document = {**SAMPLE, "metadata": {"name": name}, "spec": spec}
        self.kubectl("apply", "--filename=-", stdin=json.dumps(document))

    def wait_ready(self, name: str = "smollm2") -> None:
        """For the present generation: Ready of an earlier one says nothing."""
        self.wait(
            lambda: is_ready(self.server(name)),
            lambda: f"{name} is not ready: {self.condition('Ready', name)}",
        )

    def wait_reason(self, reason: str, name: str = "smollm2") -> dict[str, Any]:
        """Until the Ready condition has this reason; returns it."""
        self.wait(
            lambda: self.condition("Ready", name)["reason"] == reason,
            lambda: f"{name} does not come to {reason}: {self.condition('Ready', name)}",
        )
        return self.condition("Ready", name)

    def wait(self, is_so: Callable[[], bool], complaint: Callable[[], str], seconds: float = READY_SECONDS) -> None:
        end = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < end, complaint()
            time.sleep(1)

    def server(self, name: str = "smollm2") -> dict[str, Any]:
        return self.get("infsrv", name)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", kind, name, "--output=json"))
        return found

    def pods(self, name: str = "smollm2") -> list[dict[str, Any]]:
        listed = self.kubectl("get", "pods", f"--selector=plimsoll.dev/server={name}", "--output=json")
        items: list[dict[str, Any]] = json.loads(listed)["items"]
        return items

    def identities(self, name: str = "smollm2") -> dict[str, int]:
        """Pod -> how often its containers were started anew, of the pods that are to stay."""
        return {
            pod["metadata"]["uid"]: sum(each["restartCount"] for each in pod["status"].get("containerStatuses", ()))
            for pod in self.pods(name)
            if "deletionTimestamp" not in pod["metadata"]
        }

    def flags(self) -> list[str]:
        """Of the runtimes in every Deployment; nothing while there is none."""
        found = json.loads(self.kubectl("get", "deployments", "--output=json"))["items"]
        return [word for each in found for word in each["spec"]["template"]["spec"]["containers"][0]["args"]]

    def events(self, reason: str) -> list[str]:
        """What the operator's events of this reason say."""
        listed = self.kubectl("get", "events", f"--field-selector=reason={reason}", "--output=json")
        return [str(each["message"]) for each in json.loads(listed)["items"]]

    def condition(self, kind: str, name: str = "smollm2") -> dict[str, Any]:
        """Empty strings while there is none."""
        conditions = self.server(name).get("status", {}).get("conditions", ())
        return next((each for each in conditions if each["type"] == kind), {"status": "", "reason": ""})

    def budget(self, name: str = "smollm2", **request: Any) -> dict[str, Any]:
        """What the replica behind the Service would grant to a request, by default one that names no limit."""
        body = {"route": "/v1/completions", "request": {"model": SERVED_NAME, "prompt": "Hello", **request}}
        answer: dict[str, Any] = httpx.post(f"{self.address(name)}/v1/budget", json=body, timeout=60).json()
        return answer

    def address(self, name: str = "smollm2") -> str:
        """Of the Service, from this machine."""
        return f"http://{self.get('service', name)['spec']['clusterIP']}:8000"


def is_ready(server: Mapping[str, Any]) -> bool:
    """Of one reading: from two, the Ready of one generation may meet the number of the next."""
    conditions = server.get("status", {}).get("conditions", ())
    ready = [each for each in conditions if each["type"] == "Ready" and each["status"] == "True"]
    return any(each["observedGeneration"] == server["metadata"]["generation"] for each in ready)


@contextmanager
def new_site(cluster: Cluster) -> Iterator[Site]:
    """A namespace of its own, which goes with the block.

    Servers go first, and pods without their pauses: a namespace with pods that have a long grace period looks again
    only after half of that.
    """
    namespace = f"e2e-{int(time.time())}-{next(_NUMBERS)}"
    cluster.kubectl("create", "namespace", namespace)
    yield Site(cluster, namespace)
    cluster.kubectl("delete", "infsrv", "--all", f"--namespace={namespace}", "--timeout=60s")
    cluster.kubectl("delete", "pods", "--all", f"--namespace={namespace}", "--grace-period=1", "--timeout=60s")
    cluster.kubectl("delete", "namespace", namespace, "--ignore-not-found", "--timeout=60s")
