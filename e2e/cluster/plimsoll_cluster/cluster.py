"""A cluster as tests and the command line see it: opened, asked, closed.

    with open_control_plane() as cluster:      # API server alone, seconds, no root
    with open_cluster() as cluster:            # with a node: one that runs, or one made for this block
        cluster.kubectl("apply", "-f", "-", stdin=manifest)

`open_cluster` takes, in this order: the cluster of PLIMSOLL_E2E_KUBECONFIG; the one that `make cluster` started; a new
one, stopped at the end of the block. What was running before is left running. The ambient KUBECONFIG is never read.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from plimsoll_cluster import binaries, cgroups, images, leftovers, network, prerequisites
from plimsoll_cluster.commands import ClusterError, progress, run
from plimsoll_cluster.control_plane import ControlPlane, Site, loopback_site
from plimsoll_cluster.credentials import ADMIN, Credentials
from plimsoll_cluster.node import Node, containerd_socket
from plimsoll_cluster.processes import ProcessTable, is_alive

OUTSIDE_VARIABLE = "PLIMSOLL_E2E_KUBECONFIG"
_WHOLE_MARK = "whole-cluster"  # in the state folder from before the first step until after the last
_CONTAINER_SERVERS = ("coredns", "kube-proxy", "kubelet", "kube-scheduler", "kube-controller-manager")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster. `state` is None for one from outside, whose programs, logs and images are not ours."""

    kubeconfig: Path
    kubectl_program: Path
    helm_program: Path
    state: Path | None

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Runs kubectl as administrator and returns what it printed; raises ClusterError with its complaint."""
        return run([self.kubectl_program, f"--kubeconfig={self.kubeconfig}", *arguments], stdin=stdin)

    def helm(self, *arguments: str) -> str:
        return run([self.helm_program, f"--kubeconfig={self.kubeconfig}", *arguments])

    @property
    def audit_log(self) -> Path:
        """JSON lines, one for each request of everyone but Kubernetes itself."""
        return self._own_state("an audit log") / "audit.log"

    @property
    def host_address(self) -> str:
        """Where pods reach a server that listens on this machine."""
        self._own_state("an address for pods to reach this machine")
        return network.HOST_ADDRESS

    def load_image(self, tag: str) -> None:
        """Hands an image built with `images.build_image` to the node, unless it is there as it was built last."""
        state = self._own_state("a place for images")
        mark = state / "images" / tag.replace("/", "_")
        built = images.image_id(tag)
        if mark.exists() and mark.read_text() == built:
            return
        images.import_image(tag, containerd_socket(state))
        mark.parent.mkdir(exist_ok=True)
        mark.write_text(built)

    def log_tail(self, server: str) -> str:
        return ProcessTable(self._own_state("logs")).tail(server)

    def _own_state(self, what: str) -> Path:
        if self.state is None:
            raise ClusterError(f"{what} is known of the embedded cluster only: unset {OUTSIDE_VARIABLE}")
        return self.state


@contextmanager
def open_control_plane(*, with_controllers: bool = False) -> Iterator[Cluster]:
    """etcd and kube-apiserver on free loopback ports, in a temporary folder; both end with this process.

    `with_controllers` adds kube-controller-manager: garbage collection, namespaces that really go, ReplicaSets, pods
    that stay Pending.
    """
    with tempfile.TemporaryDirectory(prefix="plimsoll-control-plane-") as folder:
        state = Path(folder)
        try:
            yield start_control_plane(state, with_controllers=with_controllers, ends_with_parent=True)
        finally:
            ProcessTable(state).stop()


@contextmanager
def open_cluster(environment: Mapping[str, str] = os.environ) -> Iterator[Cluster]:
    outside = outside_cluster(environment)
    state = default_state(environment)
    running = outside or running_cluster(state)
    if running is not None:
        yield running
        return
    try:
        yield start_cluster(state)
    finally:
        stop(state)


def outside_cluster(environment: Mapping[str, str] = os.environ) -> Cluster | None:
    """The cluster of PLIMSOLL_E2E_KUBECONFIG, said aloud; None when it is not set."""
    chosen = environment.get(OUTSIDE_VARIABLE)
    if not chosen:
        return None
    kubeconfig = Path(chosen).absolute()
    if not kubeconfig.exists():
        raise ClusterError(f"{OUTSIDE_VARIABLE} names {kubeconfig}, which does not exist")
    progress(f"using the cluster of {OUTSIDE_VARIABLE}={kubeconfig}; nothing is started or stopped")
    return Cluster(kubeconfig, _own_or_path("kubectl", environment), _own_or_path("helm", environment), None)


def running_cluster(state: Path) -> Cluster | None:
    """The whole cluster that `state` describes, when all its servers are alive."""
    servers = ProcessTable(state).servers()
    if not _is_whole(state) or not servers or not all(is_alive(server) for server in servers):
        return None
    return _cluster_at(state, binaries.binaries_folder())


def start_control_plane(state: Path, *, with_controllers: bool = False, ends_with_parent: bool = False) -> Cluster:
    prerequisites.check(prerequisites.CONTROL_PLANE)
    programs = _built_programs(binaries.OF_CONTROL_PLANE)
    _claim(state)
    began = time.monotonic()
    control_plane = ControlPlane(programs, state, loopback_site(ends_with_parent=ends_with_parent))
    try:
        control_plane.start()
        if with_controllers:
            control_plane.start_controllers(with_scheduler=False)
    except BaseException:
        control_plane.processes.stop()
        raise
    progress(f"the API server is ready after {time.monotonic() - began:.1f} s")
    return _cluster_at(state, programs)


def start_cluster(state: Path) -> Cluster:
    """Starts everything; on failure everything is stopped again, and the error ends with the log that explains it."""
    prerequisites.check([*prerequisites.CONTROL_PLANE, *prerequisites.NODE], as_root=True)
    programs = _built_programs(binaries.OF_CLUSTER)
    if network.exists():
        raise ClusterError(
            f"network namespace {network.NAMESPACE} exists: another cluster runs, or `make cluster-down` is due"
        )
    _claim(state)
    began = time.monotonic()
    try:
        _start_everything(programs, state)
    except BaseException:
        progress("it failed: stopping what was started (logs are kept until the next start)")
        stop(state, keep_logs=True)
        raise
    progress(f"the cluster is ready after {time.monotonic() - began:.1f} s")
    return _cluster_at(state, programs)


def stop(state: Path, *, keep_logs: bool = False) -> None:
    """Stops and removes exactly what was started from `state`; does nothing when that is nothing."""
    if not state.exists():
        return
    processes = ProcessTable(state)
    is_whole = _is_whole(state)
    processes.stop(_CONTAINER_SERVERS)  # first, so that nobody starts again what stops now
    processes.stop(["containerd"])
    if is_whole:
        leftovers.remove_all(state)
    processes.stop()
    if is_whole:
        network.remove()
    _empty(state, kept="logs" if keep_logs else None)


def default_state(environment: Mapping[str, str] = os.environ) -> Path:
    """PLIMSOLL_CLUSTER_STATE, else plimsoll/cluster in the user's state folder."""
    if chosen := environment.get("PLIMSOLL_CLUSTER_STATE"):
        return Path(chosen).absolute()
    states = environment.get("XDG_STATE_HOME") or Path(environment.get("HOME", "/root")) / ".local" / "state"
    return Path(states) / "plimsoll" / "cluster"


def _start_everything(programs: Path, state: Path) -> None:
    (state / _WHOLE_MARK).write_text(_boot())
    progress("making the network")
    network.make()
    cgroups.make()
    site = Site(network.NODE_ADDRESS, 6443, 2379, 2380, prefix=network.ENTER)
    control_plane = ControlPlane(programs, state, site)
    progress("starting etcd and the API server")
    control_plane.start()
    control_plane.start_controllers(with_scheduler=True)
    progress("starting containerd, kubelet, kube-proxy and DNS")
    Node(control_plane).start()


def _empty(state: Path, *, kept: str | None) -> None:
    for entry in state.iterdir():
        if entry.name == kept:
            continue
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    if kept is None:
        state.rmdir()


def _is_whole(state: Path) -> bool:
    """Whether containers, mounts and a network may belong to `state`; after a reboot there are none."""
    mark = state / _WHOLE_MARK
    return mark.exists() and mark.read_text() == _boot()


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text()


def _claim(state: Path) -> None:
    """Makes an empty state folder of ours, or clears one whose cluster has died."""
    if any(is_alive(server) for server in ProcessTable(state).servers()):
        raise ClusterError(f"a cluster with its state in {state} already runs: `make cluster-down` stops it")
    stop(state)
    state.mkdir(parents=True, mode=0o700)


def _built_programs(names: frozenset[str]) -> Path:
    folder = binaries.binaries_folder()
    if absent := binaries.missing(folder, names):
        listed = ", ".join(program.name for program in absent)
        raise ClusterError(f"not built yet: {listed}: run `make cluster-binaries`")
    return folder


def _cluster_at(state: Path, programs: Path) -> Cluster:
    kubeconfig = Credentials(state / "credentials").kubeconfig(ADMIN)
    return Cluster(kubeconfig, programs / "kubectl", programs / "helm", state)


def _own_or_path(program: str, environment: Mapping[str, str]) -> Path:
    folder = binaries.find_binaries(frozenset({program}), environment)
    found = prerequisites.find_program(program) if folder is None else folder / program
    if found is None:
        raise ClusterError(f"{program} is neither built (`make cluster-binaries`) nor on PATH")
    return found
