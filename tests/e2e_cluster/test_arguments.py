"""Command lines and configuration files: what keeps the cluster as safe and as separate as it says it is."""

import tomllib
from pathlib import Path

import pytest
from plimsoll_cluster import cgroups, commands, leftovers, network, node
from plimsoll_cluster.control_plane import ControlPlane, Site, etcd_arguments, loopback_site
from plimsoll_cluster.credentials import ADMIN, Party, kubeconfig_for, token_row

STATE = Path("/srv/state")
INSIDE = Site(network.NODE_ADDRESS, 6443, 2379, 2380, prefix=network.ENTER)


def _apiserver_arguments(site: Site) -> list[str]:
    return ControlPlane(Path("/bin"), STATE, site)._apiserver_arguments(STATE / "audit-policy.yaml")


def test_no_ambient_setting_reaches_a_server() -> None:
    """A test that read the ambient KUBECONFIG would one day change someone's real cluster."""
    ambient = {
        "KUBECONFIG": "/home/ada/.kube/config",
        "GOFLAGS": "-x",
        "PATH": "/opt/bin:/usr/bin",
        "HOME": "/home/ada",
    }
    kept = commands.clean_environment(ambient)
    assert set(kept) == {"PATH", "HOME"}
    assert kept["PATH"].startswith("/opt/bin:/usr/bin:")
    assert "/usr/sbin" in kept["PATH"].split(":")


def test_the_ports_of_one_control_plane_differ() -> None:
    site = loopback_site(ends_with_parent=True)
    assert len({site.api_port, site.etcd_port, site.etcd_peer_port}) == 3
    assert site.server == f"https://127.0.0.1:{site.api_port}"


@pytest.mark.parametrize(
    ("site", "reconciler"),
    [(Site("127.0.0.1", 1, 2, 3), "none"), (INSIDE, "lease")],
    ids=["loopback", "namespace"],
)
def test_only_an_address_that_pods_reach_is_advertised(site: Site, reconciler: str) -> None:
    arguments = _apiserver_arguments(site)
    assert f"--endpoint-reconciler-type={reconciler}" in arguments
    assert f"--bind-address={site.api_address}" in arguments


def test_rights_are_checked_and_requests_are_logged() -> None:
    arguments = _apiserver_arguments(INSIDE)
    assert "--authorization-mode=Node,RBAC" in arguments
    assert f"--audit-log-path={STATE}/audit.log" in arguments
    assert any("OwnerReferencesPermissionEnforcement" in argument for argument in arguments)


def test_etcd_listens_on_loopback_only() -> None:
    urls = [argument for argument in etcd_arguments(INSIDE, STATE / "etcd") if "http" in argument]
    assert len(urls) == 5
    assert all("http://127.0.0.1:" in url for url in urls)


@pytest.mark.parametrize(
    ("party", "row"),
    [
        (ADMIN, 'T,plimsoll:admin,admin,"system:masters"\n'),
        (Party("a", "b"), "T,b,a\n"),
        (Party("a", "b", ("c", "d")), 'T,b,a,"c,d"\n'),
    ],
)
def test_token_rows(party: Party, row: str) -> None:
    assert token_row(party, "T") == row


def test_a_kubeconfig_has_one_context_and_uses_it() -> None:
    made = kubeconfig_for("plimsoll:admin", "T", "https://127.0.0.1:1", STATE / "ca.crt")
    assert made["current-context"] == "plimsoll"
    assert made["contexts"] == [{"name": "plimsoll", "context": {"cluster": "plimsoll", "user": "plimsoll:admin"}}]


def test_containerd_keeps_everything_in_the_state_folder() -> None:
    config = tomllib.loads(node.containerd_config(STATE))
    runtime = config["plugins"]["io.containerd.grpc.v1.cri"]
    assert {config["root"], config["state"], config["grpc"]["address"]} == {
        "/srv/state/containerd/root",
        "/srv/state/containerd/state",
        "/srv/state/containerd/containerd.sock",
    }
    assert runtime["cni"]["conf_dir"] == "/srv/state/cni"
    assert runtime["netns_mounts_under_state_dir"] is True
    assert runtime["restrict_oom_score_adj"] is True


def test_the_kubelet_asks_who_and_whether() -> None:
    config = node.kubelet_config(STATE, STATE / "ca.crt")
    assert config["authorization"] == {"mode": "Webhook"}
    assert config["podLogsDir"] == "/srv/state/pod-logs"
    assert config["failCgroupV1"] is False


def test_pods_live_in_a_cgroup_of_ours_in_every_hierarchy() -> None:
    """In the usual place, stopping our pods would have stopped those of another kubelet on the machine."""
    assert node.kubelet_config(STATE, STATE / "ca.crt")["cgroupRoot"] == "/plimsoll-cluster"
    mountinfo = (
        "1 0 0:2 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw\n"
        "2 1 0:3 / /sys/fs/cgroup/memory rw shared:1 - cgroup cgroup rw,memory\n"
        "3 1 0:4 / /sys/fs/cgroup/unified rw - cgroup2 none rw\n"
    )
    assert cgroups.hierarchies(mountinfo) == [Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup/unified")]


def test_mounts_of_the_state_folder_are_found_newest_first() -> None:
    rows = ["/", "/srv/state/a", "/srv/state/a/b", "/srv/state-of-another/c", "/srv/state/with\\040blank"]
    mountinfo = "".join(f"{number} 1 8:1 / {point} rw - ext4 /dev/vda rw\n" for number, point in enumerate(rows))
    assert leftovers.mounts_below(STATE, mountinfo) == ["/srv/state/with blank", "/srv/state/a/b", "/srv/state/a"]
