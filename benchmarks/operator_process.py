"""`plimsoll operator` as the chart starts it, as a process of this machine, and what can be read of it.

Owns the process, its user and its figures. In: a control plane. Out: the chart's CRD, role and flags in use; counters
from the operator's own metrics; its memory as the kernel counts it; and what the API server's audit log says that this
user did. It decides nothing.
"""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from plimsoll_cluster import Cluster

from plimsoll_operator import names
from server import free_port

CHART = Path(__file__).parent.parent / "charts" / "plimsoll"
NAME = "plimsoll"
NAMESPACE = "plimsoll-system"
USER = f"system:serviceaccount:{NAMESPACE}:{NAME}"
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
STOP_SECONDS = 30
_SAMPLE = re.compile(r"^plimsoll_operator_(\w+?)(?:_total)?(?:\{.*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Installed:
    """What the chart has put into the cluster for the operator's process."""

    kubeconfig: Path
    flags: tuple[str, ...]


def install_chart(cluster: Cluster, folder: Path) -> Installed:
    """CRD, ServiceAccount and role from the chart, a token of that account, and the flags of its Deployment."""
    cluster.helm("install", NAME, str(CHART), f"--namespace={NAMESPACE}", "--create-namespace")
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{names.PLURAL}.{names.GROUP}", "--timeout=60s")
    place = f"--namespace={NAMESPACE}"
    deployment = json.loads(cluster.kubectl("get", "deployment", NAME, place, "--output=json"))
    flags = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    content = yaml.safe_load(cluster.kubeconfig.read_text())
    content["users"][0]["user"] = {"token": cluster.kubectl("create", "token", NAME, place).strip()}
    kubeconfig = folder / "operator.kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(content))
    return Installed(kubeconfig, tuple(flags))


class OperatorProcess:
    """One running operator."""

    def __init__(self, process: "subprocess.Popen[bytes]", metrics_port: int, health_port: int) -> None:
        self._process = process
        self._metrics_url = f"http://127.0.0.1:{metrics_port}/metrics"
        self._health_url = f"http://127.0.0.1:{health_port}/healthz"

    def counters(self) -> dict[str, float]:
        """The operator's own metrics, each summed over its labels."""
        with urllib.request.urlopen(self._metrics_url, timeout=10) as answer:
            text = answer.read().decode()
        sums: defaultdict[str, float] = defaultdict(float)
        for name, value in _SAMPLE.findall(text):
            sums[name] += float(value)
        return dict(sums)

    def is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(self._health_url, timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def memory_bytes(self) -> tuple[int, int]:
        """Resident now, and the most that ever was."""
        text = Path(f"/proc/{self._process.pid}/status").read_text(encoding="utf-8")
        found = dict(re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB$", text, re.MULTILINE))
        return int(found["VmRSS"]) * 1024, int(found["VmHWM"]) * 1024

    def check_alive(self) -> None:
        if self._process.poll() is not None:
            raise RuntimeError(f"the operator ended with {self._process.returncode}")


@contextmanager
def running_operator(installed: Installed, log: Path, resync_seconds: float) -> Iterator[OperatorProcess]:
    """Until the block ends; its log is kept beside."""
    ports = free_port(), free_port()
    words = [sys.executable, "-m", "plimsoll_runtime.contract.commands", *installed.flags]
    words += [f"--kubeconfig={installed.kubeconfig}", f"--resync-seconds={resync_seconds:g}"]
    words += [f"--metrics-port={ports[0]}", f"--health-port={ports[1]}"]
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    environment |= {"POD_NAME": NAME, "POD_NAMESPACE": NAMESPACE}
    with log.open("ab") as output, subprocess.Popen(words, stderr=output, env=environment) as process:
        running = OperatorProcess(process, *ports)
        try:
            while not running.is_healthy():
                running.check_alive()
                time.sleep(0.05)
            yield running
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


@dataclass(slots=True)
class Deeds:
    """What the operator's user did: writes by (verb, resource), other requests, and the servers that were read."""

    writes: Counter[tuple[str, str]] = field(default_factory=Counter)
    num_reads: int = 0
    servers_read: set[tuple[str, str]] = field(default_factory=set)

    def add(self, entry: dict[str, Any]) -> None:
        verb, about = entry["verb"], entry.get("objectRef") or {}
        resource = "/".join(filter(None, (about.get("resource", ""), about.get("subresource"))))
        if verb in WRITES:
            self.writes[verb, resource] += 1
        elif verb != "watch":
            self.num_reads += 1
        if (verb, resource) == ("get", names.PLURAL):
            self.servers_read.add((about["namespace"], about["name"]))


class AuditLog:
    """The API server's record, read on from where the last reading ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def since_last(self) -> Deeds:
        """What the operator did since the last call."""
        deeds = Deeds()
        self.add_to(deeds)
        return deeds

    def add_to(self, deeds: Deeds) -> None:
        with self._path.open("rb") as lines:
            lines.seek(self._offset)
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                if USER.encode() in line:
                    self._add(deeds, json.loads(line))

    @staticmethod
    def _add(deeds: Deeds, entry: dict[str, Any]) -> None:
        if entry["user"]["username"] == USER and entry["stage"] == "ResponseComplete":
            deeds.add(entry)
