"""`plimsoll up -f FILE`: runs InferenceServer manifests on this machine without a cluster.

Owns the processes: one runtime per manifest, the same flags as in a cluster, ports counting up in the order of the
file, one replica each; fields that need a cluster are named and left aside. In: a YAML file. Out: an exit code: the
first non-zero one of its servers, 2 for a wrong manifest. It knows nothing of what a server does. Invariants: when one
server ends, all are told to; on SIGTERM or SIGINT the servers drain, on a second their drain is cut short, on a third
they are killed; no server outlives this process.
"""

import argparse
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from plimsoll_operator.manifest_file import read_manifests
from plimsoll_operator.spec import ManifestError, fields_for_clusters, to_runtime_config
from plimsoll_runtime.contract.command_line import render_flags
from plimsoll_runtime.contract.config import RuntimeConfig
from plimsoll_runtime.contract.endpoints import DEFAULT_PORT

SERVE: Final = (sys.executable, "-m", "plimsoll_runtime", "serve")
PR_SET_PDEATHSIG: Final = 1
LAST_PORT: Final = 65_535


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A manifest and what it means on this machine."""

    name: str
    replicas: int
    config: RuntimeConfig
    left_aside: tuple[str, ...] = ()
    """Fields of the manifest that mean something in a cluster only."""


def main(arguments: Sequence[str]) -> int:
    """Run every server of the file until it ends; returns the exit code."""
    options = _parser().parse_args(list(arguments))
    try:
        servers = read_servers(Path(options.file), options.port)
    except ManifestError as error:
        print(f"plimsoll up: {error}", file=sys.stderr)
        return 2
    return run_servers(servers, SERVE)


def read_servers(file: Path, first_port: int) -> list[LocalServer]:
    """Every server of the file with its port. Raises ManifestError."""
    manifests = read_manifests(file)
    if not manifests:
        raise ManifestError(f"{file} holds no manifest")
    if not 1 <= first_port <= LAST_PORT + 1 - len(manifests):
        raise ManifestError(f"--port: {first_port} was given; {len(manifests)} ports from there must lie in 1..65535")
    servers = []
    for number, (place, manifest) in enumerate(manifests):
        try:
            config = to_runtime_config(manifest, port=first_port + number)
        except ManifestError as error:
            raise ManifestError(f"{place}: {error}") from None
        left_aside = tuple(field for field in fields_for_clusters(manifest) if field != "spec.replicas")
        servers.append(LocalServer(manifest.name, manifest.replicas, config, left_aside))
    return servers


def run_servers(servers: Sequence[LocalServer], command: Sequence[str]) -> int:
    """Start `command` with each server's flags, wait for all, and return the first non-zero exit code, else 0."""
    group = _ServerGroup()
    with _signals_go_to(group.on_signal):
        try:
            for server in servers:
                group.start(server, command)
            return group.wait_for_all()
        except BaseException:
            group.kill_all()
            raise


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="plimsoll up",
        description="Run the InferenceServer manifests of a file on this machine, without a cluster.",
        allow_abbrev=False,
    )
    parser.add_argument("-f", "--file", required=True, metavar="FILE", help="YAML, one document per server")
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, help="port of the first server; the next take the next (%(default)s)"
    )
    return parser


@dataclass(slots=True)
class _ServerGroup:
    """The running processes by id, in order of start, and whether they were asked to stop."""

    running: dict[int, tuple[LocalServer, subprocess.Popen[bytes]]] = field(default_factory=dict)
    stopping: bool = False
    num_signals: int = 0
    first_failure: int = 0

    def start(self, server: LocalServer, command: Sequence[str]) -> None:
        if self.stopping:
            return
        process = subprocess.Popen(
            [*command, *render_flags(server.config)],
            start_new_session=True,  # a terminal's Ctrl-C must reach a server once, through us
            preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509 - no thread runs in this process
        )
        self.running[process.pid] = (server, process)
        print(started(server), flush=True)
        if self.stopping:  # a signal came while the process was being made
            self.send(signal.SIGTERM)

    def wait_for_all(self) -> int:
        while self.running:
            process_id, status = os.wait()
            if process_id in self.running:
                self._note_end(process_id, os.waitstatus_to_exitcode(status))
        return self.first_failure

    def kill_all(self) -> None:
        self.stopping = True
        self.send(signal.SIGKILL)
        self.wait_for_all()

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """The first signal asks for a drain; the server itself cuts it short on a second."""
        self.num_signals += 1
        self.stopping = True
        self.send(signal.SIGTERM if self.num_signals <= 2 else signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """To every server. Not through Popen, which would reap a server that just ended, unseen by `wait_for_all`."""
        for process_id in list(self.running):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, number)

    def _note_end(self, process_id: int, exit_code: int) -> None:
        server, process = self.running.pop(process_id)
        process.returncode = exit_code  # reaped here, so the object must not look for it
        print(f"{server.name}: ended with exit code {exit_code}", flush=True)
        if self.first_failure == 0 and exit_code != 0:
            self.first_failure = exit_code if exit_code > 0 else 128 - exit_code
        if not self.stopping:
            self.stopping = True
            self.send(signal.SIGTERM)


def started(server: LocalServer) -> str:
    """What is said when a server is started: where it is, and what of its manifest is left aside."""
    config = server.config
    line = f"{server.name}: starting at http://{config.host}:{config.port}, one replica"
    if server.replicas != 1:
        line += f" (spec.replicas {server.replicas} is for a cluster)"
    if server.left_aside:
        line += f"\n{server.name}: not used here, for a cluster only: {', '.join(server.left_aside)}"
    return line


def _die_with(parent: int) -> Callable[[], None]:
    """What a new process does first: have itself killed when this one dies, however that happens (Linux)."""

    def ask_the_kernel() -> None:
        if sys.platform != "linux":
            return
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return ask_the_kernel


@contextlib.contextmanager
def _signals_go_to(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Within the block SIGTERM and SIGINT call `handler`; afterwards they do what they did before."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
