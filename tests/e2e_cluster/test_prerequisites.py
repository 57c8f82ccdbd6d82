"""What a machine lacks is said at once, each thing with the Debian package that brings it."""

from pathlib import Path

import pytest
from plimsoll_cluster import prerequisites
from plimsoll_cluster.commands import ClusterError


def _find_none(_: str) -> Path | None:
    return None


@pytest.mark.parametrize(
    ("program", "package"),
    [
        ("containerd", "containerd"),
        ("runc", "runc"),
        ("cni/ptp", "containernetworking-plugins"),
        ("iptables", "iptables"),
        ("conntrack", "conntrack"),
        ("ip", "iproute2"),
    ],
)
def test_each_missing_program_is_named_with_its_package(program: str, package: str) -> None:
    with pytest.raises(ClusterError) as raised:
        prerequisites.check(prerequisites.NODE, find=_find_none)
    assert f"\n  - {program} (Debian package {package}), for" in str(raised.value)
    assert "make cluster-packages" in str(raised.value)


def test_go_is_asked_of_its_makers() -> None:
    with pytest.raises(ClusterError, match=r"go \(Go 1\.26 or newer"):
        prerequisites.check(prerequisites.TO_BUILD, find=_find_none)


def test_nothing_is_said_when_all_is_there() -> None:
    prerequisites.check(prerequisites.NODE, find=lambda program: Path("/usr/bin") / program)


def test_root_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="root is needed"):
        prerequisites.check([], as_root=True)


@pytest.mark.parametrize(
    ("effective", "absent"),
    [
        ("000001ffffffffff", []),
        ("00000000a80425fb", ["CAP_NET_ADMIN", "CAP_SYS_ADMIN"]),
        ("00000000a80435fb", ["CAP_SYS_ADMIN"]),
    ],
)
def test_root_of_a_container_needs_its_rights(effective: str, absent: list[str]) -> None:
    said = " ".join(prerequisites.rights_missing(0, f"Name:\tpython\nCapEff:\t{effective}\n"))
    assert [name for name in ("CAP_NET_ADMIN", "CAP_SYS_ADMIN") if name in said] == absent
