"""The cgroup in which all pods of the cluster live, one of our own in each hierarchy of the machine.

Because the kubelet is told this root, another kubelet on the machine is neither disturbed nor mistaken for ours, and
every process in it is a process of our pods. Works for version 1 (many hierarchies), version 2 (one) and both at once.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from plimsoll_cluster.commands import ClusterError

NAME = "plimsoll-cluster"
_GONE_SECONDS = 10


def make() -> None:
    for hierarchy in hierarchies(Path("/proc/self/mountinfo").read_text()):
        try:
            _make_in(hierarchy)
        except OSError as error:
            raise ClusterError(f"cgroup {hierarchy / NAME} cannot be made: {error}") from error


def processes() -> Iterator[int]:
    for root in _roots():
        for procs in root.rglob("cgroup.procs"):
            with contextlib.suppress(FileNotFoundError):
                yield from (int(pid) for pid in procs.read_text().split())


def remove() -> None:
    """Call it when the processes have been killed; their cgroups empty a moment later."""
    deadline = time.monotonic() + _GONE_SECONDS
    for root in list(_roots()):
        below = [path for path in root.rglob("*") if path.is_dir()]
        for folder in [*sorted(below, reverse=True), root]:
            _remove_one(folder, deadline)


def hierarchies(mountinfo: str) -> list[Path]:
    """Mount points of cgroup file systems in the text of /proc/self/mountinfo."""
    rows = [line.split() for line in mountinfo.splitlines()]
    return [Path(row[4]) for row in rows if row[row.index("-") + 1] in ("cgroup", "cgroup2")]


def _roots() -> Iterator[Path]:
    mounted = hierarchies(Path("/proc/self/mountinfo").read_text())
    return (hierarchy / NAME for hierarchy in mounted if (hierarchy / NAME).is_dir())


def _make_in(hierarchy: Path) -> None:
    root = hierarchy / NAME
    root.mkdir(exist_ok=True)
    controllers = hierarchy / "cgroup.controllers"
    if controllers.exists():  # version 2: children get only the controllers that the parent hands down
        for controller in controllers.read_text().split():
            (hierarchy / "cgroup.subtree_control").write_text(f"+{controller}")
        return
    for setting in ("cpuset.cpus", "cpuset.mems"):  # version 1: empty in a new cgroup, and unusable while it is
        if (hierarchy / setting).exists():
            (root / setting).write_text((hierarchy / setting).read_text())


def _remove_one(folder: Path, deadline: float) -> None:
    while folder.exists():
        try:
            folder.rmdir()
        except OSError as error:
            if time.monotonic() > deadline:
                raise ClusterError(f"cgroup {folder} cannot be removed: {error}") from error
            time.sleep(0.05)
