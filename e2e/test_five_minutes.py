"""What takes five minutes by its nature; the waits run side by side, and the tests read what came of them.

A server that refuses every request says so: the second report's was silent while nobody was served. An operator that
hears nothing of the API server says that it is sick, and works again when it hears.
"""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from plimsoll_cluster import Cluster, open_control_plane

from live_site import SERVED_NAME, Site, new_site
from operator_process import install_chart, running_operator
from silent_proxy import between

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

PATIENCE_SECONDS = 420
MESSAGES = [{"role": "user", "content": "Name three colours."}]
TOO_MANY = 2048  # with a context of 2048 there is never room for them
ROUTES: Mapping[str, Mapping[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": TOO_MANY},
    "/v1/completions": {"prompt": "Hello", "max_tokens": TOO_MANY},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": TOO_MANY},
    "/v1/responses": {"input": "Hello", "max_output_tokens": TOO_MANY},
}


@dataclass(frozen=True, slots=True)
class Waits:
    refused: "Future[Refused]"
    cut_off: "Future[CutOff]"


@dataclass(frozen=True, slots=True)
class Refused:
    """`answers`: every HTTP status that came; then the status of the server, and the events."""

    answers: set[int]
    refusals: Mapping[str, Any]
    events: list[str]


@dataclass(frozen=True, slots=True)
class CutOff:
    """Whether the operator called itself healthy: before, after minutes of silence, and again afterwards."""

    before: bool
    during: bool
    afterwards: bool


@pytest.fixture(scope="module")
def waits(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waits]:
    folder = tmp_path_factory.mktemp("cut-off")
    with new_site(cluster) as site, ThreadPoolExecutor(2) as threads:
        yield Waits(threads.submit(be_refused, site), threads.submit(be_cut_off, folder))


def be_refused(site: Site) -> Refused:
    """Until the operator tells it; then one request is served, and it no longer does."""
    site.apply(overBudget="Refuse", maxOutput={"default": 512})
    site.wait_ready()
    with refused_clients(site.address()) as answers:
        complaint = "five minutes of refusals are not told"
        site.wait(lambda: "refusals" in site.server()["status"], lambda: complaint, PATIENCE_SECONDS)
        told = Refused(answers, site.server()["status"]["refusals"], site.events("AllRequestsRefused"))
    body = {"model": SERVED_NAME, "prompt": "Hello", "max_tokens": 1}
    httpx.post(f"{site.address()}/v1/completions", json=body, timeout=60).raise_for_status()
    site.wait(lambda: "refusals" not in site.server()["status"], lambda: "one answer is not noticed", 120)
    return told


@contextmanager
def refused_clients(address: str) -> Iterator[set[int]]:
    """Each route is asked for too much every few seconds while the block runs; which statuses came."""
    statuses: set[int] = set()
    stop = threading.Event()

    def ask() -> None:
        while not stop.wait(5):
            for route, body in ROUTES.items():
                answer = httpx.post(f"{address}{route}", json={"model": SERVED_NAME, **body}, timeout=60)
                statuses.add(answer.status_code)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield statuses
    finally:
        stop.set()
        thread.join()


def be_cut_off(folder: Path) -> CutOff:
    """A second API server and an operator of its own, which nobody restarts when it says that it is sick."""
    with open_control_plane() as cluster:
        installed = install_chart(cluster, folder)
        site = Site(cluster, "default")
        with (
            between(installed, folder) as (through, proxy),
            running_operator(through, folder / "operator.log", resync_seconds=5) as operator,
        ):
            site.apply()
            site.wait(lambda: site.flags() != [], lambda: "no Deployment comes")
            before = operator.is_healthy()
            proxy.cut_off()
            site.apply(maxOutput={"default": 99, "limit": 1024})
            complaint = "it believes that it is well"
            site.wait(lambda: not operator.is_healthy(), lambda: complaint, PATIENCE_SECONDS)
            during = operator.is_healthy()
            assert "--max-output-default=99" not in site.flags()
            proxy.let_new_ones_pass()
            site.wait(lambda: "--max-output-default=99" in site.flags(), lambda: "the edit is not seen", 120)
            site.wait(operator.is_healthy, lambda: "it does not recover", 120)
            return CutOff(before, during, operator.is_healthy())


def test_refusing_everything_for_five_minutes_is_told(waits: Waits) -> None:
    """The second report. Before, the table said Ready and every request was refused."""
    told = waits.refused.result()
    assert told.answers == {400}
    assert told.refusals["reason"] == "context_length_exceeded"
    assert told.refusals["requests"] >= len(ROUTES)
    assert any("context_length_exceeded" in message for message in told.events)


def test_an_operator_that_is_cut_off_says_so_and_catches_up(waits: Waits) -> None:
    """B107. Before, it lived on as if all were well, and nobody restarted it."""
    assert waits.cut_off.result() == CutOff(before=True, during=False, afterwards=True)
