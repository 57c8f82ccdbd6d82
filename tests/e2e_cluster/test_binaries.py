"""Where programs are built, what decides that they are built anew, and the versions stamped into them."""

from pathlib import Path

import pytest
from plimsoll_cluster import binaries
from plimsoll_cluster.binaries import PROGRAMS, Program
from plimsoll_cluster.commands import ClusterError

GO_MOD = "module x\n\nrequire (\n\thelm.sh/helm/v4 v4.3.1\n\tk8s.io/kubernetes v1.37.2\n)\n"
KUBELET = next(program for program in PROGRAMS if program.name == "kubelet")
HELM = next(program for program in PROGRAMS if program.name == "helm")


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HOME": "/home/ada"}, "/home/ada/.cache/plimsoll/cluster"),
        ({"HOME": "/home/ada", "XDG_CACHE_HOME": "/var/cache"}, "/var/cache/plimsoll/cluster"),
        ({"HOME": "/home/ada", "PLIMSOLL_CLUSTER_CACHE": "/big/disk", "XDG_CACHE_HOME": "/v"}, "/big/disk"),
    ],
)
def test_the_cache_lies_outside_the_checkout(environment: dict[str, str], folder: str) -> None:
    assert binaries.cache_root(environment) == Path(folder)


def test_kubernetes_programs_report_their_version() -> None:
    """Built without a stamp, the API server said v0.0.0, and charts that ask for a version refused it."""
    flags = binaries.link_flags(KUBELET, GO_MOD)
    assert "-X k8s.io/component-base/version.gitVersion=v1.37.2" in flags
    assert "-X k8s.io/component-base/version.gitMinor=37" in flags
    assert "helm" not in flags
    assert "internal/version.version=v4.3.1" in binaries.link_flags(HELM, GO_MOD)


def test_a_module_that_is_not_required_is_named() -> None:
    with pytest.raises(ClusterError, match=r"does not require k8s\.io/kubernetes"):
        binaries.required_version("module x\n", "k8s.io/kubernetes")


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    for name in {program.module for program in PROGRAMS}:
        (tmp_path / name).mkdir()
        (tmp_path / name / "go.mod").write_text(GO_MOD)
    return tmp_path


@pytest.mark.parametrize("changed", ["kubernetes/go.mod", "helm/go.sum", "pause/pause.go"])
def test_a_changed_source_is_another_folder(modules: Path, changed: str) -> None:
    before = binaries.fingerprint("go1.26.0", modules)
    (modules / changed).write_text(GO_MOD + "// changed\n")
    assert binaries.fingerprint("go1.26.0", modules) != before


def test_the_same_sources_are_the_same_folder_and_another_go_is_another(modules: Path) -> None:
    before = binaries.fingerprint("go1.26.0", modules)
    assert binaries.fingerprint("go1.26.0", modules) == before
    assert binaries.fingerprint("go1.26.1", modules) != before


def test_what_is_built_is_not_missing(tmp_path: Path) -> None:
    (tmp_path / "kubelet").touch()
    missing = binaries.missing(tmp_path)
    assert KUBELET not in missing
    assert len(missing) == len(PROGRAMS) - 1


def test_every_program_names_a_tool_of_its_module() -> None:
    for program in PROGRAMS:
        go_mod = (binaries.MODULES / program.module / "go.mod").read_text()
        assert program.package == "." or _has_tool(go_mod, program), program


def _has_tool(go_mod: str, program: Program) -> bool:
    return any(line.split()[-1:] == [program.package] for line in go_mod.splitlines())
