"""`plimsoll operator` as a process beside a real kube-apiserver: watches, metrics, health, restarts, the Lease."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from plimsoll_cluster import Cluster, open_control_plane
from plimsoll_cluster.binaries import OF_CONTROL_PLANE, find_binaries

from doubles.operator_cluster import Site, wait_for_crd
from operator_api.conftest import Api
from plimsoll_operator import names
from plimsoll_operator.crd import crd
from plimsoll_operator.crd_check import missing_fields
from plimsoll_operator.reconcile import Outcome

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

OPERATOR = (sys.executable, "-m", "plimsoll_runtime.contract.commands", "operator")
SMALL_ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
"""Without a KUBECONFIG, which must not be read."""
CHILDREN = {"ServiceAccount/tiny", "NetworkPolicy/tiny", "Service/tiny", "Deployment/tiny"}


@pytest.fixture
def site(api: Api) -> Site:
    return Site(api.cluster)


class Operator:
    """One running process."""

    def __init__(self, process: "subprocess.Popen[bytes]", metrics_port: int, health_port: int, log: Path) -> None:
        self.process = process
        self._metrics, self._health, self._log = metrics_port, health_port, log

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics}/metrics", timeout=5) as answer:
            return str(answer.read().decode())

    def health(self) -> int:
        """The status, 0 where nobody listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._health}/healthz", timeout=5) as answer:
                return int(answer.status)
        except OSError:
            return 0

    def log(self) -> list[dict[str, str]]:
        """Every line: each must be a JSON object."""
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def num_writes(self) -> int:
        """So far, the Lease aside."""
        found = re.findall(r'^plimsoll_operator_writes_total\{kind="(\w+)",.*\} (\S+)$', self.metrics(), re.MULTILINE)
        return sum(int(float(number)) for kind, number in found if kind != "Lease")


@contextmanager
def operator(cluster: Cluster, folder: Path, *flags: str, name: str = "one") -> Iterator[Operator]:
    ports = free_port(), free_port()
    log = folder / f"{name}.log"
    words = [*OPERATOR, "--default-image=example/runtime:1", f"--kubeconfig={cluster.kubeconfig}"]
    words += [f"--metrics-port={ports[0]}", f"--health-port={ports[1]}", *flags]
    environment = {**SMALL_ENVIRONMENT, "POD_NAME": name, "POD_NAMESPACE": "default"}
    with log.open("wb") as output, subprocess.Popen(words, stderr=output, env=environment) as process:
        running = Operator(process, *ports, log)
        try:
            wait(lambda: running.health() == 200)
            yield running
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def wait(is_so: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.1)


def has_children(site: Site) -> bool:
    return site.children().keys() == CHILDREN


def test_what_users_and_time_do_is_followed_and_then_all_is_quiet(site: Site, tmp_path: Path) -> None:
    """B100, B118. Before, the operator's own writes set it off again, for ever."""
    with operator(site.running, tmp_path, f"--namespace={site.namespace}", "--resync-seconds=1") as running:
        site.user_applies()
        wait(lambda: has_children(site))
        site.kubectl("delete", "deployment/tiny")
        wait(lambda: has_children(site))
        site.kubectl("delete", "service/tiny")
        wait(lambda: has_children(site))
        site.user_applies(maxOutput={"default": 99, "limit": 1024})
        wait(lambda: "99" in str(site.get("Deployment")["spec"]["template"]))
        wait(lambda: site.get(names.KIND)["status"]["observedGeneration"] == 2)
        time.sleep(2)  # for what is still under way
        before, num_writes = site.versions(), running.num_writes()
        time.sleep(3)  # three resyncs
        assert site.versions() == before
        assert running.num_writes() == num_writes
        assert "annotations" not in site.get(names.KIND)["metadata"]
        assert {line["level"] for line in running.log()} == {"info"}
        assert running.health() == 200
    assert running.process.returncode == 0


def test_what_is_taken_away_by_hand_is_back_without_a_resync(site: Site, tmp_path: Path) -> None:
    """Before, a deleted Service came back with the next resync: a minute without an address."""
    with operator(site.running, tmp_path, f"--namespace={site.namespace}", "--resync-seconds=3600"):
        site.user_applies(replicas=2)
        wait(lambda: site.children().keys() == CHILDREN | {"PodDisruptionBudget/tiny"})
        for child in site.children().values():
            kind, uid = child["kind"], child["metadata"]["uid"]
            site.kubectl("delete", kind, "tiny")
            wait(lambda kind=kind, uid=uid: uid_of(site, f"{kind}/tiny") not in ("", uid))  # type: ignore[misc]
        site.kubectl("label", "networkpolicy/tiny", f"{names.LABEL_SERVER}-", "--overwrite")
        wait(lambda: names.LABEL_SERVER in site.get("NetworkPolicy")["metadata"]["labels"])


def uid_of(site: Site, child: str) -> str:
    """Empty where there is none."""
    found = site.children().get(child)
    return "" if found is None else str(found["metadata"]["uid"])


def test_a_restart_changes_nothing(site: Site, tmp_path: Path) -> None:
    """B109. A second process, killed in between, finds everything as it is wanted."""
    with operator(site.running, tmp_path, f"--namespace={site.namespace}") as first:
        site.user_applies()
        wait(lambda: has_children(site) and "status" in site.get(names.KIND))
        time.sleep(1)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
    before = site.versions()
    with operator(site.running, tmp_path, f"--namespace={site.namespace}", name="two") as second:
        wait(lambda: 'reconciles_total{outcome="settled"}' in second.metrics())
        assert second.num_writes() == 0
    assert site.versions() == before


def test_other_namespaces_are_left_alone(site: Site, api: Api, tmp_path: Path) -> None:
    """B129."""
    other, elsewhere = Site(api.cluster), Site(api.cluster)
    flags = [f"--namespace={site.namespace}", f"--namespace={other.namespace}"]
    for each in (elsewhere, site, other):
        each.user_applies()
    with operator(site.running, tmp_path, *flags):
        wait(lambda: has_children(site) and has_children(other))
    assert elsewhere.children() == {}
    assert "status" not in elsewhere.get(names.KIND)


def test_of_two_operators_one_works_and_the_other_follows_when_it_is_killed(site: Site, tmp_path: Path) -> None:
    """B98. Before, two operators did everything twice, or a dead one's record froze the other."""
    flags = (f"--namespace={site.namespace}", "--leader-election")
    with operator(site.running, tmp_path, *flags) as first:
        wait(lambda: any(line["message"].startswith("leading") for line in first.log()))
        with operator(site.running, tmp_path, *flags, name="two") as second:
            wait(lambda: any("waiting" in line["message"] for line in second.log()))
            site.user_applies()
            wait(lambda: has_children(site))
            assert second.num_writes() == 0
            first.process.send_signal(signal.SIGKILL)
            first.process.wait()
            site.kubectl("delete", "service/tiny")
            wait(lambda: has_children(site))
            assert second.num_writes() > 0


def test_a_crd_of_an_older_version_is_told_at_start(api: Api, site: Site, tmp_path: Path) -> None:
    """B126. Before, a new field was dropped by the older CRD, and neither user nor operator was told."""
    older = crd()
    del older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["refusals"]
    flag = f"--namespace={site.namespace}"
    try:
        api.apply(older)
        wait(lambda: missing_fields(site.cluster.openapi(names.API_VERSION)) == ("status.refusals",))
        with operator(site.running, tmp_path, flag) as running:
            wait(lambda: any("lacks status.refusals" in line["message"] for line in running.log()))
    finally:
        api.apply(crd())
    wait(lambda: missing_fields(site.cluster.openapi(names.API_VERSION)) == ())
    with operator(site.running, tmp_path, flag, name="two") as running:
        site.user_applies()
        wait(lambda: has_children(site))
        assert {line["level"] for line in running.log()} == {"info"}


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--kubeconfig=/nowhere"], 1, "no cluster"),
        (["--resync-seconds=0"], 2, "'0' is not a number of seconds, 1 or more"),
        (["--resync-seconds=nan"], 2, "'nan' is not a number of seconds"),
        (["--namspace=a"], 2, "unrecognized arguments: --namspace=a"),
        ([], 1, "no cluster"),
    ],
)
def test_what_cannot_work_ends_with_a_sentence(flags: list[str], code: int, words: str) -> None:
    done = subprocess.run(
        [*OPERATOR, "--default-image=x", *flags],
        capture_output=True,
        text=True,
        check=False,
        env=SMALL_ENVIRONMENT,
    )
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr


@pytest.fixture(scope="module")
def with_controllers() -> Iterator[Cluster]:
    if find_binaries(OF_CONTROL_PLANE) is None:
        pytest.skip("cluster: the control plane is not built here: run make cluster-binaries")
    with open_control_plane(with_controllers=True) as cluster:
        cluster.kubectl("apply", "--server-side", "--filename=-", stdin=json.dumps(crd()))
        wait_for_crd(cluster)
        yield cluster


@pytest.mark.parametrize("what", ["infsrv/tiny", "namespace"])
def test_a_deletion_needs_no_operator(with_controllers: Cluster, what: str) -> None:
    """B96. Before, a finalizer kept servers and namespaces for as long as the operator was away."""
    site = Site(with_controllers)
    site.user_applies()
    site.reconcile()
    assert site.children()
    if what == "namespace":
        site.running.kubectl("delete", "namespace", site.namespace, "--timeout=60s")
    else:
        site.kubectl("delete", what, "--timeout=30s")
    wait(lambda: not {key for key, each in site.children().items() if each["metadata"].get("ownerReferences")})


def test_an_autoscaler_is_followed_and_never_fought(with_controllers: Cluster) -> None:
    """B115. A real HorizontalPodAutoscaler, which needs no figures to come up to its minimum."""
    site = Site(with_controllers)
    site.user_applies()
    site.settle()
    target = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "tiny"}
    autoscaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "tiny", "namespace": site.namespace},
        "spec": {"scaleTargetRef": target, "minReplicas": 3, "maxReplicas": 4},
    }
    site.user_applies_object(autoscaler)
    wait(lambda: site.get(names.KIND)["spec"]["replicas"] == 3, seconds=120)
    site.settle()
    assert site.get("Deployment")["spec"]["replicas"] == 3
    wait(lambda: site.reconcile() is Outcome.SETTLED, seconds=60)  # the controllers still tell the Deployment's status
    site.user_applies(maxOutput={"default": 99, "limit": 1024})  # a manifest without replicas, as its author has it
    site.settle()
    assert (site.get(names.KIND)["spec"]["replicas"], site.get("Deployment")["spec"]["replicas"]) == (3, 3)
    managers = {each["manager"] for each in site.get(names.KIND)["metadata"]["managedFields"]}
    assert managers >= {"kubectl", names.FIELD_MANAGER}
    owned = [
        each["fieldsV1"] for each in site.get(names.KIND)["metadata"]["managedFields"] if each["manager"] == "plimsoll"
    ]
    assert all("f:spec" not in fields for fields in owned), "the operator owns a part of what users declare"


def test_a_namespace_on_its_way_out_disturbs_no_other(with_controllers: Cluster, tmp_path: Path) -> None:
    """B97."""
    going, staying = Site(with_controllers), Site(with_controllers)
    going.user_applies()
    staying.user_applies()
    with operator(with_controllers, tmp_path, "--resync-seconds=1") as running:
        wait(lambda: going.children().keys() >= CHILDREN and staying.children().keys() >= CHILDREN)
        going.running.kubectl("delete", "namespace", going.namespace, "--timeout=60s")
        staying.user_applies(replicas=2)
        wait(lambda: "PodDisruptionBudget/tiny" in staying.children())
        assert {line["level"] for line in running.log()} == {"info"}
