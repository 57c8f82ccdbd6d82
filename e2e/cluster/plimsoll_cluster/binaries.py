"""Builds the cluster's programs from their Go modules, into a cache folder that outlives the checkout.

In: the modules under `modules/` and the Go toolchain. Out: one folder named after a hash of everything that decides its
content (go.mod, go.sum, our sources, the Go version, the stamps), so that a finished program is never built twice.
Each program is built under a temporary name and renamed: what is in the folder is whole.
"""

import hashlib
import os
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from plimsoll_cluster.commands import ClusterError, progress, run

MODULES = Path(__file__).resolve().parent.parent / "modules"
_KUBERNETES_STAMPS = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


@dataclass(frozen=True, slots=True)
class Program:
    """`package` of the Go module in modules/`module`, built as `name`."""

    name: str
    module: str
    package: str


PROGRAMS = (
    Program("pause", "pause", "."),
    Program("etcd", "kubernetes", "go.etcd.io/etcd/server/v3"),
    Program("kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
    Program("kubectl", "kubernetes", "k8s.io/kubernetes/cmd/kubectl"),
    Program("kube-controller-manager", "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    Program("kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"),
    Program("kubelet", "kubernetes", "k8s.io/kubernetes/cmd/kubelet"),
    Program("kube-proxy", "kubernetes", "k8s.io/kubernetes/cmd/kube-proxy"),
    Program("coredns", "coredns", "github.com/coredns/coredns"),
    Program("helm", "helm", "helm.sh/helm/v4/cmd/helm"),
)

EVERY_PROGRAM = frozenset(program.name for program in PROGRAMS)
OF_CONTROL_PLANE = frozenset({"etcd", "kube-apiserver", "kube-controller-manager", "kubectl"})
OF_CLUSTER = EVERY_PROGRAM - {"helm"}


def cache_root(environment: Mapping[str, str] = os.environ) -> Path:
    """PLIMSOLL_CLUSTER_CACHE, else plimsoll/cluster in the user's cache folder."""
    if chosen := environment.get("PLIMSOLL_CLUSTER_CACHE"):
        return Path(chosen).absolute()
    caches = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/root")) / ".cache"
    return Path(caches) / "plimsoll" / "cluster"


def binaries_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where this checkout's programs are, or will be. Raises ClusterError without a Go toolchain."""
    return cache_root(environment) / fingerprint(go_version(), MODULES)


def find_binaries(names: frozenset[str] = EVERY_PROGRAM, environment: Mapping[str, str] = os.environ) -> Path | None:
    """The folder with the named programs in it, or None: tests skip then and name `make cluster-binaries`."""
    try:
        folder = binaries_folder(environment)
    except ClusterError:
        return None
    return None if missing(folder, names) else folder


def missing(folder: Path, names: frozenset[str] = EVERY_PROGRAM) -> list[Program]:
    """In the order in which they are built."""
    return [program for program in PROGRAMS if program.name in names and not (folder / program.name).exists()]


def build(environment: Mapping[str, str] = os.environ) -> Path:
    """Builds what is missing, saying which program and how long it took, and returns the folder."""
    folder = binaries_folder(environment)
    wanted = missing(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if wanted:
        progress(f"building {len(wanted)} of {len(PROGRAMS)} programs into {folder} (a cold machine takes 20 minutes)")
    for place, program in enumerate(wanted, start=1):
        progress(f"[{place}/{len(wanted)}] building {program.name}")
        began = time.monotonic()
        _build_program(program, folder, environment)
        megabytes = (folder / program.name).stat().st_size / 1e6
        progress(f"[{place}/{len(wanted)}] {program.name}: {time.monotonic() - began:.0f} s, {megabytes:.0f} MB")
    return folder


def go_version() -> str:
    try:
        return run(["go", "env", "GOVERSION"], environment=dict(os.environ)).strip()
    except ClusterError:
        raise ClusterError("go is not on PATH: install Go 1.26 or newer") from None


def link_flags(program: Program, go_mod: str) -> str:
    """Linker flags: no symbols, and the version that the program should report (each reports v0.0.0 without)."""
    flags = ["-s", "-w"]
    if program.package.startswith("k8s.io/kubernetes/"):
        version = required_version(go_mod, "k8s.io/kubernetes")
        major, minor, _ = version.lstrip("v").split(".", 2)
        stamps = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "archive"}
        flags += [f"-X {package}.{name}={value}" for package in _KUBERNETES_STAMPS for name, value in stamps.items()]
    if program.name == "helm":
        flags.append(f"-X helm.sh/helm/v4/internal/version.version={required_version(go_mod, 'helm.sh/helm/v4')}")
    return " ".join(flags)


def required_version(go_mod: str, module: str) -> str:
    found = re.search(rf"^\s*(?:require )?{re.escape(module)} (v\S+)", go_mod, re.MULTILINE)
    if found is None:
        raise ClusterError(f"go.mod does not require {module}")
    return found.group(1)


def fingerprint(go: str, modules: Path) -> str:
    """A name for what `go` makes of `modules`: it changes with anything that could change a program."""
    digest = hashlib.sha256(go.encode())
    names = {program.module for program in PROGRAMS}
    sources = [file for name in sorted(names) for file in sorted((modules / name).iterdir())]
    for source in sources:
        content = source.read_bytes()
        digest.update(f"{source.parent.name}/{source.name} {len(content)}\n".encode() + content)
    for program in PROGRAMS:
        flags = link_flags(program, (modules / program.module / "go.mod").read_text())
        digest.update(f"{program} {flags}\n".encode())
    return digest.hexdigest()[:16]


def _build_program(program: Program, folder: Path, environment: Mapping[str, str]) -> None:
    module = MODULES / program.module
    unfinished = folder / f".{program.name}.{os.getpid()}"
    flags = link_flags(program, (module / "go.mod").read_text())
    command = ["go", "build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", flags]
    # Without cgo the programs are static: `pause` must be, and no C compiler is needed for any.
    finished = subprocess.run(
        [*command, "-o", str(unfinished), program.package],
        cwd=module,
        env={**environment, "CGO_ENABLED": "0"},
        check=False,
    )
    if finished.returncode != 0:
        unfinished.unlink(missing_ok=True)
        raise ClusterError(f"go could not build {program.name} in {module}: see the lines above")
    unfinished.replace(folder / program.name)
