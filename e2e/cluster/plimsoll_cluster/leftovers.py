"""What outlives the servers of a node, and how it goes: containers, their shims, mounts, cgroups.

Everything is found by where it is, never by a program's name: containers by the kubelet's cgroups (which did not exist
before, `check_free` saw to that), shims by the containerd address in their command line, mounts by the state folder.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from plimsoll_cluster.commands import ClusterError, run
from plimsoll_cluster.processes import start_ticks

_CGROUPS = Path("/sys/fs/cgroup")
_POD_CGROUP = "kubepods"
_GONE_SECONDS = 10


def check_free() -> None:
    """Raises ClusterError when another kubelet's pods are on this machine: its cgroups would be taken for ours."""
    if any(_pod_cgroups()):
        raise ClusterError(
            f"another kubelet keeps pods on this machine ({_POD_CGROUP} under {_CGROUPS}): stop it first"
        )


def remove_all(state: Path) -> None:
    """Call it with kubelet and containerd stopped."""
    _kill(pid for root in _pod_cgroups() for pid in _pids_below(root))
    sockets = list(_shim_sockets(state))
    _kill(_shims(state))
    for mount in mounts_below(state, Path("/proc/self/mountinfo").read_text()):
        run(["umount", "--lazy", mount])
    for root in list(_pod_cgroups()):
        _remove_cgroup(root)
    for socket in sockets:
        socket.unlink(missing_ok=True)
    for result in Path("/var/lib/cni/results").glob("plimsoll-*"):
        result.unlink(missing_ok=True)


def _pod_cgroups() -> Iterator[Path]:
    """The kubelet's root in each cgroup hierarchy: one of version 2, many of version 1 (linked names once)."""
    hierarchies = [_CGROUPS, *(path for path in _CGROUPS.glob("*") if path.is_dir() and not path.is_symlink())]
    return (path / _POD_CGROUP for path in hierarchies if (path / _POD_CGROUP).is_dir())


def _pids_below(root: Path) -> list[int]:
    return [int(pid) for procs in root.rglob("cgroup.procs") for pid in procs.read_text().split()]


def _shims(state: Path) -> Iterator[int]:
    address = f"{state}/containerd/".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"containerd-shim" in words[0] and any(word.startswith(address) for word in words):
            yield int(entry.name)


def _shim_sockets(state: Path) -> Iterator[Path]:
    """The sockets of shims lie outside the state folder; each one's bundle names its own."""
    for address in (state / "containerd").glob("state/io.containerd.runtime.v2.task/*/*/address"):
        yield Path(address.read_text().removeprefix("unix://"))


def _kill(pids: Iterator[int]) -> None:
    victims = {pid: start_ticks(pid) for pid in pids}
    for pid in victims:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + _GONE_SECONDS
    while any(ticks is not None and start_ticks(pid) == ticks for pid, ticks in victims.items()):
        if time.monotonic() > deadline:
            raise ClusterError(f"processes that do not end: {sorted(victims)}")
        time.sleep(0.05)


def mounts_below(folder: Path, mountinfo: str) -> list[str]:
    """Mount points below `folder` in the text of /proc/self/mountinfo, newest first, which may cover older ones."""
    points = [line.split()[4].replace("\\040", " ") for line in mountinfo.splitlines()]
    return [point for point in reversed(points) if point.startswith(f"{folder}/")]


def _remove_cgroup(root: Path) -> None:
    deadline = time.monotonic() + _GONE_SECONDS
    for folder in sorted((path for path in [root, *root.rglob("*")] if path.is_dir()), reverse=True):
        while True:
            try:
                folder.rmdir()
                break
            except OSError as error:  # a killed process still leaves its cgroup
                if time.monotonic() > deadline:
                    raise ClusterError(f"cgroup {folder} cannot be removed: {error}") from error
                time.sleep(0.05)
