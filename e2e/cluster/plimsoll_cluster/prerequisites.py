"""What the cluster takes from the machine: programs, the Debian package that brings each, and root.

Checks say everything that is missing at once, each with its package. Installing needs root and apt-get.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from plimsoll_cluster.commands import ClusterError, clean_environment, progress, run

_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
"""Name -> bit, of what networks and mounts need."""
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
_CNI_PLUGINS = ("ptp", "host-local", "portmap", "loopback")


@dataclass(frozen=True, slots=True)
class Prerequisite:
    """`program` on PATH (or, with a slash, a CNI plugin), from `package`, for `purpose`."""

    program: str
    package: str
    purpose: str


TO_BUILD = (Prerequisite("go", "", "building the programs"),)
CONTROL_PLANE = (
    Prerequisite("openssl", "openssl", "certificates"),
    Prerequisite("setpriv", "util-linux", "servers that end with the tests"),
)
NODE = (
    Prerequisite("containerd", "containerd", "running containers"),
    Prerequisite("ctr", "containerd", "handing images to containerd"),
    Prerequisite("runc", "runc", "running containers"),
    *(Prerequisite(f"cni/{plugin}", "containernetworking-plugins", "pod networks") for plugin in _CNI_PLUGINS),
    Prerequisite("iptables", "iptables", "Services"),
    Prerequisite("conntrack", "conntrack", "Services"),
    Prerequisite("ip", "iproute2", "the cluster's network"),
    Prerequisite("nsenter", "util-linux", "the cluster's network"),
    Prerequisite("mount", "mount", "volumes"),
)
IMAGES = (
    Prerequisite("buildah", "buildah", "building images"),
    Prerequisite("debootstrap", "debootstrap", "the base image"),
)


def find_program(program: str) -> Path | None:
    """Where `program` is; `cni/NAME` is looked up in the folders of CNI plugins."""
    if program.startswith("cni/"):
        plugins = (folder / program.removeprefix("cni/") for folder in CNI_FOLDERS)
        return next((plugin for plugin in plugins if plugin.exists()), None)
    found = shutil.which(program, path=clean_environment()["PATH"])
    return None if found is None else Path(found)


def check(
    wanted: Sequence[Prerequisite],
    *,
    as_root: bool = False,
    find: Callable[[str], Path | None] = find_program,
) -> None:
    """Raises ClusterError with one line for each thing that is missing."""
    complaints = [_sentence(item) for item in wanted if find(item.program) is None]
    if as_root:
        complaints += rights_missing(os.geteuid(), Path("/proc/self/status").read_text())
    if complaints:
        advice = "on Debian `make cluster-packages` installs the packages"
        raise ClusterError("\n  - ".join(["this machine lacks:", *complaints, advice]))


def rights_missing(user: int, status: str) -> list[str]:
    """Sentences. `status`: the text of /proc/self/status, since root in a container may have little to say."""
    if user != 0:
        return ["root is needed for the cluster's network, containerd and the kubelet: run it with sudo"]
    effective = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:"))
    absent = [name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]
    return [f"root has no {' and no '.join(absent)} here: a container has to be privileged"] if absent else []


def install(wanted: Iterable[Prerequisite]) -> None:
    """Installs the Debian packages of what is missing; does nothing when all is there."""
    packages = sorted({item.package for item in wanted if item.package and find_program(item.program) is None})
    if not packages:
        progress("every Debian package is there")
        return
    if find_program("apt-get") is None or os.geteuid() != 0:
        raise ClusterError(f"apt-get and root are needed to install: {' '.join(packages)}")
    progress(f"installing {' '.join(packages)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}  # a proxy for apt may be set there
    run(["apt-get", "update", "-qq"], environment=environment)
    run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], environment=environment)


def _sentence(item: Prerequisite) -> str:
    source = (
        f"Debian package {item.package}" if item.package else "Go 1.26 or newer, from your distribution or its makers"
    )
    return f"{item.program} ({source}), for {item.purpose}"
