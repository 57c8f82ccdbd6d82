"""`plimsoll up`: files into servers, and servers as processes that never outlive it.

The processes are real, the program in them is a small stand-in for the runtime.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plimsoll_operator.local import main, read_servers, started
from plimsoll_operator.spec import ManifestError

SERVER = """
apiVersion: plimsoll.dev/v1alpha1
kind: InferenceServer
metadata: {name: NAME}
spec: {model: {source: "file:///models/tiny"}, replicas: REPLICAS}
"""
PATIENCE_SECONDS = 30

CHILD = """
import os, signal, sys, time
port = next(flag for flag in sys.argv if flag.startswith("--port")).split("=")[1]
folder, behaviour = sys.argv[1], sys.argv[2]
signals = []
def drain(number, frame):
    signals.append(number)
    open(f"{folder}/{port}.drained-{len(signals)}", "w").write(signal.Signals(number).name)
    if behaviour != "stubborn":
        sys.exit(int(behaviour) if port == "9001" else 0)
signal.signal(signal.SIGTERM, drain)
open(f"{folder}/{port}.part", "w").write(str(os.getpid()))
os.rename(f"{folder}/{port}.part", f"{folder}/{port}.started")
while True:
    if os.path.exists(f"{folder}/{port}.crash"):
        os._exit(7)
    time.sleep(0.02)
"""

PARENT = """
import sys
from pathlib import Path
from plimsoll_operator.local import read_servers, run_servers
folder, behaviour = Path(sys.argv[1]), sys.argv[2]
servers = read_servers(folder / "servers.yaml", 9000)
sys.exit(run_servers(servers, [sys.executable, str(folder / "child.py"), str(folder), behaviour]))
"""


def manifest(name: str, replicas: int = 1) -> str:
    return SERVER.replace("NAME", name).replace("REPLICAS", str(replicas))


def write(folder: Path, *documents: str) -> Path:
    file = folder / "servers.yaml"
    file.write_text("---".join(documents), encoding="utf-8")
    return file


def test_ports_count_up_in_file_order_and_empty_documents_do_not_count(tmp_path: Path) -> None:
    servers = read_servers(write(tmp_path, manifest("second"), "\n", manifest("first")), 8000)
    assert [(server.name, server.config.port) for server in servers] == [("second", 8000), ("first", 8001)]


@pytest.mark.parametrize(
    ("text", "port", "expected"),
    [
        pytest.param("", 8000, "holds no manifest", id="empty"),
        pytest.param("a: [", 8000, "is not YAML", id="not-yaml"),
        pytest.param("a: 1\na: 2\n", 8000, "'a' stands twice", id="key-twice"),
        pytest.param(manifest("a") + "---" + manifest("a"), 8000, "document 2: metadata.name a", id="name-twice"),
        pytest.param(manifest("a") + "---\n[]", 8000, "document 2: a manifest is a mapping", id="second-document"),
        pytest.param(manifest("a").replace("replicas", "copies"), 8000, "document 1: spec.copies", id="field"),
        pytest.param(manifest("a") + "---" + manifest("b"), 65535, "--port: 65535", id="ports-run-out"),
        pytest.param(manifest("a"), 0, "--port: 0", id="port-zero"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(tmp_path: Path, text: str, port: int, expected: str) -> None:
    with pytest.raises(ManifestError) as fault:
        read_servers(write(tmp_path, text), port)
    assert expected in str(fault.value)
    assert "\n" not in str(fault.value)


def test_a_wrong_file_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-f", str(tmp_path / "absent.yaml")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_fields_that_need_a_cluster_are_named_and_left_aside(tmp_path: Path) -> None:
    """A field that is accepted and ignored in silence is what this project exists against."""
    keyed = "apiKeysSecretRef: {name: s, key: k}, fairness: {weights: [{tenant: 1a2b3c4d, weight: 2}]}"
    fields = f"resources: {{limits: {{cpu: 1}}}}, network: {{from: []}}, {keyed}"
    (server,) = read_servers(write(tmp_path, manifest("a").replace("spec: {", f"spec: {{{fields}, ")), 8000)
    left_aside = ("spec.fairness.weights", "spec.resources", "spec.network.from", "spec.apiKeysSecretRef")
    assert set(server.left_aside) == set(left_aside)
    assert server.config.tenant_weights == ()
    line = started(server)
    assert f"not used here, for a cluster only: {', '.join(server.left_aside)}" in line
    (plain,) = read_servers(write(tmp_path, manifest("a")), 8000)
    assert "for a cluster only" not in started(plain)


@pytest.mark.parametrize("source", ["hf://org/name", "pvc://claim/m", "oci://image:tag/m"])
def test_a_source_that_only_a_cluster_has_is_refused_with_the_reason(tmp_path: Path, source: str) -> None:
    with pytest.raises(ManifestError) as fault:
        read_servers(write(tmp_path, manifest("a").replace("file:///models/tiny", source)), 8000)
    assert "document 1: spec.model.source: " in str(fault.value)
    assert "cluster" in str(fault.value)


class Up:
    """A running `plimsoll up` with two servers, and what its servers said through files."""

    def __init__(self, folder: Path, behaviour: str) -> None:
        write(folder, manifest("a"), manifest("b", replicas=3))
        (folder / "child.py").write_text(CHILD, encoding="utf-8")
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", PARENT, str(folder), behaviour], stdout=subprocess.PIPE, text=True
        )
        self.children = [int(self.said(f"{port}.started")) for port in (9000, 9001)]

    def said(self, name: str) -> str:
        wait_until((self.folder / name).exists)
        return (self.folder / name).read_text(encoding="utf-8")

    def end(self) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode, output


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_alive(process_id: int) -> bool:
    """A zombie, whose parent has not looked yet, is dead."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def up(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Up]:
    running = Up(tmp_path, getattr(request, "param", "0"))
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.communicate()
    for child in running.children:
        if is_alive(child):
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_as_a_drain_and_waited_for(up: Up, number: signal.Signals) -> None:
    up.process.send_signal(number)
    code, output = up.end()
    assert code == 0
    assert up.said("9000.drained-1") == up.said("9001.drained-1") == "SIGTERM"
    assert "a: starting at http://127.0.0.1:9000, one replica\n" in output
    assert "b: starting at http://127.0.0.1:9001, one replica (spec.replicas 3 is for a cluster)\n" in output


@pytest.mark.parametrize("up", ["5"], indirect=True)
def test_the_first_exit_code_that_is_not_zero_is_ours(up: Up) -> None:
    up.process.terminate()
    assert up.end()[0] == 5


def test_when_one_server_ends_the_others_are_drained(up: Up) -> None:
    """Otherwise a crashed server would go unnoticed behind the ones that still answer."""
    (up.folder / "9000.crash").touch()
    code, output = up.end()
    assert code == 7
    assert up.said("9001.drained-1") == "SIGTERM"
    assert "a: ended with exit code 7" in output


@pytest.mark.parametrize("up", ["stubborn"], indirect=True)
def test_a_third_signal_ends_servers_that_do_not_drain(up: Up) -> None:
    for number in (1, 2):
        up.process.terminate()
        up.said(f"9000.drained-{number}")
        up.said(f"9001.drained-{number}")
    up.process.terminate()
    assert up.end()[0] == 128 + signal.SIGKILL


def test_no_server_outlives_a_killed_parent(up: Up) -> None:
    up.process.kill()
    up.process.communicate()
    wait_until(lambda: not any(is_alive(child) for child in up.children))
