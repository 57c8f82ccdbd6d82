"""`make bench-operator`: what the operator costs at hundreds of servers, as a table and as JSON.

In: how many servers. A control plane without nodes runs for the measurement alone; the operator is a process with the
chart's role and flags; replicas are pretended (fake_replicas.py), so that every server becomes Ready. Everything shares
this machine's processor: API server, etcd, the load, the replicas and the operator. It asserts nothing: a benchmark is
read, never passed.
"""

import argparse
import itertools
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plimsoll_cluster import Cluster, open_control_plane
from plimsoll_cluster.binaries import find_binaries

from api_client import ApiClient
from fake_replicas import DEFAULT_OUTPUT, addresses, answering, manifest, pretend_ready, report_generations
from operator_process import AuditLog, Deeds, Installed, OperatorProcess, install_chart, running_operator
from plimsoll_operator import names
from table import Figure, render_table

NUM_NAMESPACES = 5
NUM_CLIENTS = 4
NUM_EDITS = 20
RESYNCS_PER_SECOND = 10
"""Servers; so 500 take 50 s, a little less than the operator's default interval."""
PATIENCE_SECONDS = 300
QUIET_SECONDS = 3
MEMORY_GOAL_BYTES = 200 * 2**20
COLUMN = "plimsoll"
RESULT = Path(".artifacts/operator-benchmarks.json")

Server = tuple[str, str]
"""(namespace, name)."""


@dataclass(slots=True)
class Site:
    """One control plane with the servers of the measurement."""

    cluster: Cluster
    api: ApiClient
    installed: Installed
    servers: Sequence[Server]
    log: Path
    audit: AuditLog = field(init=False)

    def __post_init__(self) -> None:
        self.audit = AuditLog(self.cluster.audit_log)

    @property
    def resync_seconds(self) -> float:
        return max(10.0, len(self.servers) / RESYNCS_PER_SECOND)

    def operator(self) -> AbstractContextManager[OperatorProcess]:
        return running_operator(self.installed, self.log, self.resync_seconds)

    def for_each(self, act: Callable[[int, Server], None]) -> None:
        """Several at a time."""
        with ThreadPoolExecutor(NUM_CLIENTS) as clients:
            for _ in clients.map(act, itertools.count(), self.servers):
                pass

    def num_servers(self, is_so: Callable[[Mapping[str, Any]], bool]) -> int:
        listed = self.api.get(f"/apis/{names.API_VERSION}/{names.PLURAL}")["items"]
        return sum(is_so(each.get("status") or {}) for each in listed)

    def all_were_read(self, deeds: Deeds) -> bool:
        """Whether the operator has asked for every server, once what is new in the audit log is in `deeds`."""
        self.audit.add_to(deeds)
        return deeds.servers_read >= set(self.servers)


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(list(arguments))
    if find_binaries() is None:
        print("the control plane is not built here: run `make cluster-binaries`", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was started is stopped
    with _site(options.servers) as site:
        measured = _measure(site)
    figures = _figures(measured, options.servers)
    print(render_table(figures, [COLUMN]))
    _write({"machine": _machine(), "servers": options.servers, "figures": [vars(each) for each in figures], **measured})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks/operator_run.py", description="Measure the operator.")
    parser.add_argument(
        "--servers", type=int, default=500, choices=range(NUM_EDITS, 2001), metavar="N", help="default %(default)s"
    )
    return parser


@contextmanager
def _site(num_servers: int) -> Iterator[Site]:
    servers = [(f"team-{number % NUM_NAMESPACES}", f"server-{number}") for number in range(num_servers)]
    with tempfile.TemporaryDirectory(prefix="plimsoll-bench-") as folder, open_control_plane() as cluster:
        installed = install_chart(cluster, Path(folder))
        for namespace in sorted({namespace for namespace, _ in servers}):
            cluster.kubectl("create", "namespace", namespace)
        RESULT.parent.mkdir(exist_ok=True)
        log = RESULT.with_suffix(".log")
        log.unlink(missing_ok=True)
        with answering(addresses(num_servers)):
            yield Site(cluster, ApiClient(cluster.kubeconfig), installed, servers, log)


def _measure(site: Site) -> dict[str, Any]:
    with site.operator() as operator:
        until_ready = {**_create(site, operator), **_make_ready(site, operator)}
        quiet, memory = _resync(site, operator), operator.memory_bytes()
        edits = _edit(site)
        _wait_until_quiet(site, operator, Deeds())
    return {
        **until_ready,
        **quiet,
        "memory": {"resident_bytes": memory[0], "peak_bytes": memory[1]},
        "edit_seconds": edits,
        **_restart(site),
    }


def _create(site: Site, operator: OperatorProcess) -> dict[str, Any]:
    """Until the operator has written every child and a first status."""
    before, began = operator.counters().get("reconciles", 0), time.monotonic()
    site.audit.since_last()
    path = f"/apis/{names.API_VERSION}/namespaces/{{}}/{names.PLURAL}"
    site.for_each(lambda _, server: _ignore(site.api.create(path.format(server[0]), manifest(*server))))
    _wait(operator, "a first status", lambda: site.num_servers(bool) == len(site.servers))
    seconds = time.monotonic() - began
    reconciles = operator.counters()["reconciles"] - before
    return {"create": {"seconds": seconds, "reconciles": reconciles, **_told(site.audit.since_last(), site)}}


def _make_ready(site: Site, operator: OperatorProcess) -> dict[str, Any]:
    at, began = addresses(len(site.servers)), time.monotonic()
    site.for_each(lambda number, server: pretend_ready(site.api, *server, at[number]))

    def is_complete() -> bool:
        report_generations(site.api)
        return site.num_servers(_is_ready) == len(site.servers)

    _wait(operator, "Ready", is_complete)
    seconds, deeds = time.monotonic() - began, Deeds()
    _wait_until_quiet(site, operator, deeds)
    return {"ready": {"seconds": seconds, **_told(deeds, site)}}


def _resync(site: Site, operator: OperatorProcess) -> dict[str, Any]:
    """Until the audit log shows that every server was read again."""
    deeds, before = Deeds(), operator.counters()["reconciles"]
    _wait(operator, "a resync of all", lambda: site.all_were_read(deeds))
    reconciles = operator.counters()["reconciles"] - before
    return {"resync": {"interval_seconds": site.resync_seconds, "reconciles": reconciles, **_told(deeds, site)}}


def _edit(site: Site) -> list[float]:
    """Seconds from sending a changed spec until the status speaks of that generation, one server after another."""
    samples = []
    for namespace, name in site.servers[:NUM_EDITS]:
        path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}/{name}"
        began = time.monotonic()
        edited = site.api.patch(path, {"spec": {"maxOutput": {"default": DEFAULT_OUTPUT // 2}}})
        generation = edited["metadata"]["generation"]
        while site.api.get(path)["status"]["observedGeneration"] != generation:
            if time.monotonic() - began > PATIENCE_SECONDS:
                raise RuntimeError(f"the edit of {namespace}/{name} was not handled")
            time.sleep(0.01)
        samples.append(time.monotonic() - began)
    return samples


def _restart(site: Site) -> dict[str, Any]:
    """A new process, which finds everything as it is wanted: the operator's own speed."""
    site.audit.since_last()
    deeds = Deeds()
    with site.operator() as operator:
        began = time.monotonic()
        _wait(operator, "every server read again", lambda: site.all_were_read(deeds), pause=0.2)
        seconds, reconciles = time.monotonic() - began, operator.counters()["reconciles"]
        _wait_until_quiet(site, operator, deeds)
        memory = operator.memory_bytes()
    return {
        "restart": {"seconds": seconds, "reconciles": reconciles, "peak_bytes": memory[1], **_told(deeds, site)},
    }


def _wait(operator: OperatorProcess, what: str, is_so: Callable[[], bool], pause: float = 1.0) -> None:
    began = time.monotonic()
    while not is_so():
        operator.check_alive()
        if time.monotonic() - began > PATIENCE_SECONDS:
            raise RuntimeError(f"{PATIENCE_SECONDS} s were not enough for: {what}")
        time.sleep(pause)
    _say(f"{what}: {time.monotonic() - began:.1f} s")


def _wait_until_quiet(site: Site, operator: OperatorProcess, deeds: Deeds) -> None:
    """Until nothing is due and nothing was written for a while; adds to `deeds` what happens."""

    def is_quiet() -> bool:
        site.audit.add_to(deeds)
        before = deeds.writes.total()
        time.sleep(QUIET_SECONDS)
        site.audit.add_to(deeds)
        return deeds.writes.total() == before and operator.counters()["queue_length"] == 0

    _wait(operator, "quiet", is_quiet)


def _told(deeds: Deeds, site: Site) -> dict[str, Any]:
    writes = {f"{verb} {resource}": count for (verb, resource), count in sorted(deeds.writes.items())}
    return {
        "num_writes": deeds.writes.total(),
        "writes_per_server": deeds.writes.total() / len(site.servers),
        "num_reads": deeds.num_reads,
        "writes": writes,
    }


def _is_ready(status: Mapping[str, Any]) -> bool:
    conditions = status.get("conditions") or ()
    return any(each["type"] == names.CONDITION_READY and each["status"] == "True" for each in conditions)


def _figures(measured: Mapping[str, Any], num_servers: int) -> list[Figure]:
    create, ready, resync, restart = (measured[phase] for phase in ("create", "ready", "resync", "restart"))
    memory, edits = measured["memory"], measured["edit_seconds"]

    def figure(name: str, unit: str, value: float, goal: str = "", met: bool | None = None) -> Figure:
        return Figure(name, unit, {COLUMN: value}, goal, met)

    writes = create["num_writes"] + ready["num_writes"]
    return [
        figure("servers", "", num_servers),
        figure("create to children and first status, all", "s", create["seconds"]),
        figure("reconciles while they are created", "1/s", create["reconciles"] / create["seconds"]),
        figure("reconciles after a restart", "1/s", restart["reconciles"] / restart["seconds"]),
        figure("writes per server until settled", "", writes / num_servers),
        figure("resident memory", "MiB", memory["resident_bytes"] / 2**20),
        figure(
            "resident memory, peak",
            "MiB",
            max(memory["peak_bytes"], restart["peak_bytes"]) / 2**20,
            "under 200",
            max(memory["peak_bytes"], restart["peak_bytes"]) < MEMORY_GOAL_BYTES,
        ),
        figure("writes of a resync of all", "", resync["num_writes"], "0", resync["num_writes"] == 0),
        figure("writes of a restart", "", restart["num_writes"], "0", restart["num_writes"] == 0),
        figure("reads per reconcile of a resync", "", resync["num_reads"] / max(1, resync["reconciles"])),
        figure("edit to handled, median", "s", statistics.median(edits)),
        figure("edit to handled, slowest", "s", max(edits)),
    ]


def _machine() -> dict[str, Any]:
    return {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()}


def _write(result: Mapping[str, Any]) -> None:
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result))


def _ignore(_: Any) -> None:
    """For calls whose answer does not matter."""


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
