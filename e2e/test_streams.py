"""No stream is cut: not by a rolling update, and not when a pod that serves is deleted."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from live_site import Site

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

MODEL = "smollm2"
CLIENTS = 8
TASK = "Count from one to five hundred, one number a line."
TOKENS = 160
MESSAGES = [{"role": "user", "content": TASK}]

# Connections are spread by chance: one replica has room for all.
TWO: Mapping[str, Any] = {"replicas": 2, "runningSlots": CLIENTS}

Body = Mapping[str, Any]
ROUTES: Mapping[str, Body] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": TOKENS},
    "/v1/completions": {"prompt": TASK, "max_tokens": TOKENS},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": TOKENS},
    "/v1/responses": {"input": TASK, "max_output_tokens": TOKENS},
}


def is_final(data: str) -> bool:
    """Whether this is the last event that the route promises, and no error."""
    if data == "[DONE]":
        return True
    kind = json.loads(data).get("type", "")
    return kind in ("message_stop", "response.completed", "response.incomplete")


@dataclass
class Clients:
    """Clients that open a stream, read it to its end, and open the next, each on its route.

    No stream ends early, so that it outlives the pause between the order to stop and the signal.
    """

    address: str
    stop: threading.Event = field(default_factory=threading.Event)
    opened: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def stream_on(self, route: str) -> None:
        while not self.stop.is_set():
            started = time.monotonic()
            try:
                last = self._last_event(route)
            except httpx.HTTPError as error:
                self._fault(route, started, repr(error))
                continue
            if last is not None and not is_final(last):
                self._fault(route, started, f"its last event is {last}")

    def _last_event(self, route: str) -> str | None:
        """None without a stream: the server stops, and has asked to come again before a word was said."""
        body = {"model": MODEL, "stream": True, "ignore_eos": True, **ROUTES[route]}
        last = "{}"
        with httpx.stream("POST", f"{self.address}{route}", json=body, timeout=120) as answer:
            if answer.status_code in (503, 529) and "retry-after" in answer.headers:
                self.refusals.append(route)
                time.sleep(1)
                return None
            answer.raise_for_status()
            self.opened.append(time.monotonic())
            for line in answer.iter_lines():
                last = line.removeprefix("data: ") if line.startswith("data: ") else last
        self.ended.append(time.monotonic())
        return last

    def _fault(self, route: str, started: float, what: str) -> None:
        self.faults.append(f"{route} after {time.monotonic() - started:.1f} s: {what}")
        time.sleep(0.5)

    def open_now(self) -> int:
        return len(self.opened) - len(self.ended)


@contextmanager
def streaming(site: Site) -> Iterator[Clients]:
    """Eight clients while the block runs; on the way out each reads its stream to the end."""
    clients = Clients(site.address())
    with ThreadPoolExecutor(CLIENTS) as threads:
        running = [threads.submit(clients.stream_on, route) for route in (*ROUTES, *ROUTES)]
        try:
            site.wait(lambda: clients.open_now() == CLIENTS, lambda: f"not all stream: {clients}", 60)
            yield clients
            # What came after has to work too.
            count = len(clients.ended)
            site.wait(lambda: len(clients.ended) >= count + CLIENTS, lambda: f"streams stand still: {clients}", 120)
        finally:
            clients.stop.set()
    for client in running:
        client.result()


def living(site: Site) -> dict[str, str]:
    """Name -> address of every pod that has not been told to go; without a host while it has none."""
    return {
        pod["metadata"]["name"]: f"http://{pod['status'].get('podIP', '')}:8000"
        for pod in site.pods()
        if "deletionTimestamp" not in pod["metadata"]
    }


def running_streams(address: str) -> float:
    """How many requests one pod answers now."""
    for line in httpx.get(f"{address}/metrics", timeout=30).text.splitlines():
        if line.startswith("plimsoll_requests_running"):
            return float(line.split()[-1])
    raise AssertionError("the pod tells no number of running requests")


def update(site: Site) -> None:
    site.apply(**TWO, maxOutput={"default": 100, "limit": 1024})


def delete_a_pod_that_serves(site: Site) -> None:
    load = {name: running_streams(address) for name, address in living(site).items()}
    busiest = max(load, key=lambda name: load[name])
    assert load[busiest] > 0, load
    site.kubectl("delete", "pod", busiest, "--wait=false")


@pytest.mark.parametrize("disturb", [update, delete_a_pod_that_serves])
def test_no_stream_is_cut(site: Site, disturb: Callable[[Site], None]) -> None:
    """B38. Before, pods that went closed the connections of those who were reading."""
    site.apply(**TWO)
    site.wait_ready()
    before = living(site).keys()
    with streaming(site) as clients:
        assert clients.open_now() >= CLIENTS // 2, "too few streams are open to prove anything"
        disturb(site)
        site.wait(lambda: living(site).keys() != before, lambda: "the pods stayed")
        site.wait_ready()
        site.wait(lambda: len(site.pods()) == len(living(site)) == TWO["replicas"], lambda: "the old pods stay")
    assert clients.faults == []
    assert len(clients.opened) == len(clients.ended) > CLIENTS
