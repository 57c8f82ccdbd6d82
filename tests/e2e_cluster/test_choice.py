"""Which cluster a test gets, and what stopping leaves alone."""

from pathlib import Path

import pytest
from plimsoll_cluster import cluster
from plimsoll_cluster.commands import ClusterError
from plimsoll_cluster.processes import ProcessTable, is_alive


def test_an_outside_cluster_is_used_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.touch()
    (tmp_path / "kubectl").touch()
    for name in ("kubectl", "helm"):
        (tmp_path / name).touch(mode=0o755)
    environment = {"PLIMSOLL_E2E_KUBECONFIG": str(kubeconfig), "PLIMSOLL_CLUSTER_CACHE": str(tmp_path)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        found = cluster.outside_cluster(environment)
    assert found is not None
    assert found.kubeconfig == kubeconfig
    assert f"PLIMSOLL_E2E_KUBECONFIG={kubeconfig}" in capsys.readouterr().out
    with pytest.raises(ClusterError, match="unset PLIMSOLL_E2E_KUBECONFIG"):
        found.load_image("localhost/x:1")


def test_an_outside_cluster_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """Silently taking the embedded cluster instead would test something else than was asked."""
    with pytest.raises(ClusterError, match="does not exist"):
        cluster.outside_cluster({"PLIMSOLL_E2E_KUBECONFIG": str(tmp_path / "none")})


def test_the_ambient_kubeconfig_is_not_a_choice() -> None:
    assert cluster.outside_cluster({"KUBECONFIG": "/home/ada/.kube/config", "HOME": "/home/ada"}) is None


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HOME": "/home/ada"}, "/home/ada/.local/state/plimsoll/cluster"),
        ({"HOME": "/home/ada", "XDG_STATE_HOME": "/s"}, "/s/plimsoll/cluster"),
        ({"HOME": "/home/ada", "PLIMSOLL_CLUSTER_STATE": "/t"}, "/t"),
    ],
)
def test_the_state_folder(environment: dict[str, str], folder: str) -> None:
    assert cluster.default_state(environment) == Path(folder)


def test_a_cluster_with_a_dead_server_is_not_running(tmp_path: Path) -> None:
    table = ProcessTable(tmp_path)
    (tmp_path / "whole-cluster").write_text(Path("/proc/sys/kernel/random/boot_id").read_text())
    table.start("kubelet", ["sleep", "60"])
    table.start("etcd", ["sleep", "0.2"])
    table.wait_until("it ended", lambda: table.dead() == ["etcd"], blame="etcd", timeout_seconds=10)
    assert cluster.running_cluster(tmp_path) is None
    table.stop()


def test_a_control_plane_alone_is_not_taken_for_a_cluster(tmp_path: Path) -> None:
    """`make cluster` would have said that all is well, and no pod would ever have run."""
    table = ProcessTable(tmp_path)
    table.start("etcd", ["sleep", "60"])
    assert cluster.running_cluster(tmp_path) is None
    (tmp_path / "whole-cluster").write_text(Path("/proc/sys/kernel/random/boot_id").read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("plimsoll_cluster.binaries.binaries_folder", lambda: Path("/bin"))
        assert cluster.running_cluster(tmp_path) is not None
    table.stop()


def test_stopping_removes_the_state_and_what_ran_from_it(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    table = ProcessTable(state)
    table.start("etcd", ["sleep", "60"])
    server = table.servers()[0]
    cluster.stop(state)
    assert not is_alive(server)
    assert not state.exists()
    cluster.stop(state)


def test_the_logs_of_a_failed_start_are_kept(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    table = ProcessTable(state)
    table.start("etcd", ["sh", "-c", "echo the disk is full; sleep 0.2"])
    table.wait_until("it ended", lambda: table.dead() == ["etcd"], blame="etcd", timeout_seconds=10)
    cluster.stop(state, keep_logs=True)
    assert [entry.name for entry in state.iterdir()] == ["logs"]
    assert "the disk is full" in table.tail("etcd")


def test_the_state_of_a_living_cluster_is_not_cleared(tmp_path: Path) -> None:
    table = ProcessTable(tmp_path)
    table.start("etcd", ["sleep", "60"])
    with pytest.raises(ClusterError, match="already runs"):
        cluster._claim(tmp_path)
    assert is_alive(table.servers()[0])
    table.stop()
