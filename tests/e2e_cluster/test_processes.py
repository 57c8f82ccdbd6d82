"""The process table: what it stops, what it leaves alone, what it says when a server dies."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from plimsoll_cluster.commands import ClusterError
from plimsoll_cluster.processes import ProcessTable, is_alive, start_ticks


@pytest.fixture
def table(tmp_path: Path) -> Iterator[ProcessTable]:
    made = ProcessTable(tmp_path)
    yield made
    made.stop()


def test_servers_are_stopped_by_another_run_of_the_program(table: ProcessTable, tmp_path: Path) -> None:
    table.start("first", ["sleep", "60"])
    table.start("second", ["sleep", "60"])
    started = table.servers()
    assert ProcessTable(tmp_path).stop() == ["second", "first"]
    assert not any(is_alive(server) for server in started)
    assert table.servers() == []


def test_only_the_named_servers_are_stopped(table: ProcessTable) -> None:
    table.start("kept", ["sleep", "60"])
    table.start("stopped", ["sleep", "60"])
    assert table.stop(["stopped"]) == ["stopped"]
    assert [server.name for server in table.servers()] == ["kept"]
    assert is_alive(table.servers()[0])


def test_a_process_id_that_means_another_process_now_is_left_alone(table: ProcessTable, tmp_path: Path) -> None:
    table.start("server", ["sleep", "60"])
    server = table.servers()[0]
    state_file = tmp_path / "processes.json"
    state_file.write_text(state_file.read_text().replace(str(server.start_ticks), str(server.start_ticks + 1)))
    assert table.stop() == []
    assert is_alive(server)
    os.kill(server.pid, 9)


def test_a_server_that_ignores_the_signal_is_killed(table: ProcessTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plimsoll_cluster.processes._STOP_SECONDS", 0.2)
    table.start("stubborn", ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"])
    log = table.log_file("stubborn")
    table.wait_until("it ignores signals", lambda: "ready" in log.read_text(), blame="stubborn", timeout_seconds=10)
    server = table.servers()[0]
    assert table.stop() == ["stubborn"]
    assert not is_alive(server)


def test_a_server_that_dies_is_named_with_the_end_of_its_log(table: ProcessTable) -> None:
    table.start("etcd", ["sh", "-c", "sleep 0.2; echo the disk is full; exit 3"])
    with pytest.raises(ClusterError, match=r"etcd died while waiting until it is ready;(?s:.*)the disk is full"):
        table.wait_until("it is ready", lambda: False, blame="etcd", timeout_seconds=20)


def test_waiting_ends_with_the_log_of_the_server_to_blame(table: ProcessTable) -> None:
    table.start("kubelet", ["sh", "-c", "echo no cgroup; exec sleep 60"])
    log = table.log_file("kubelet")
    table.wait_until("it spoke", lambda: "no cgroup" in log.read_text(), blame="kubelet", timeout_seconds=10)
    with pytest.raises(ClusterError, match=r"0 s were not enough until the node is Ready;(?s:.*)no cgroup"):
        table.wait_until("the node is Ready", lambda: False, blame="kubelet", timeout_seconds=0)


def test_the_start_time_is_found_behind_a_name_with_blanks_and_brackets(tmp_path: Path) -> None:
    program = tmp_path / "a (b) c"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o755)
    with subprocess.Popen([program, "60"]) as child:
        ticks = start_ticks(child.pid)
        child.kill()
    assert ticks is not None
    assert ticks > 1000
    assert start_ticks(child.pid) is None
