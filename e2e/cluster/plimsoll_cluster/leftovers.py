"""What outlives the servers of a node, and how it goes: containers, their shims, mounts, sockets.

Everything is found by where it is, never by a program's name: containers by our cgroup, shims by the containerd address
in their command line, mounts by the state folder.
"""

import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from plimsoll_cluster import cgroups
from plimsoll_cluster.commands import ClusterError, run
from plimsoll_cluster.processes import start_ticks

_GONE_SECONDS = 10


def remove_all(state: Path) -> None:
    """Call it with kubelet and containerd stopped."""
    _kill(cgroups.processes())
    sockets = list(_shim_sockets(state))
    _kill(_shims(state))
    for mount in mounts_below(state, Path("/proc/self/mountinfo").read_text()):
        run(["umount", "--lazy", mount])
    cgroups.remove()
    for socket in sockets:
        socket.unlink(missing_ok=True)
    for result in _network_results():
        result.unlink(missing_ok=True)


def mounts_below(folder: Path, mountinfo: str) -> list[str]:
    """Mount points below `folder` in the text of /proc/self/mountinfo, newest first, which may cover older ones."""
    points = [line.split()[4].replace("\\040", " ") for line in mountinfo.splitlines()]
    return [point for point in reversed(points) if point.startswith(f"{folder}/")]


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


def _network_results() -> Iterator[Path]:
    """Notes about each pod's network that containerd keeps in one place, whatever its own root."""
    results = Path("/var/lib/cni/results")
    for result in results.glob("plimsoll-*-eth0"):
        pod = result.name.removeprefix("plimsoll-").removesuffix("-eth0")
        yield from (result, results / f"cni-loopback-{pod}-lo")


def _kill(pids: Iterable[int]) -> None:
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
