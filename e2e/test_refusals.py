"""A server that refuses every request says so: the second report's was silent while nobody was served."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from live_site import SERVED_NAME, Site

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

WINDOW_SECONDS = 300
MESSAGES = [{"role": "user", "content": "Name three colours."}]
TOO_MANY = 2048  # with a context of 2048 there is never room for them
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": TOO_MANY},
    "/v1/completions": {"prompt": "Hello", "max_tokens": TOO_MANY},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": TOO_MANY},
    "/v1/responses": {"input": "Hello", "max_output_tokens": TOO_MANY},
}


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


def test_refusing_everything_for_five_minutes_is_told(site: Site) -> None:
    """The second report. Before, the table said Ready and every request was refused."""
    site.apply(overBudget="Refuse", maxOutput={"default": 512})
    site.wait_ready()
    with refused_clients(site.address()) as statuses:
        complaint = "five minutes of refusals are not told"
        site.wait(lambda: "refusals" in site.server()["status"], lambda: complaint, WINDOW_SECONDS + 120)
        refusals = site.server()["status"]["refusals"]
    assert statuses == {400}
    assert refusals["reason"] == "context_length_exceeded"
    assert refusals["requests"] >= len(ROUTES)
    assert any("context_length_exceeded" in message for message in site.events("AllRequestsRefused"))
    served = httpx.post(
        f"{site.address()}/v1/completions",
        json={"model": SERVED_NAME, "prompt": "Hello", "max_tokens": 1},
        timeout=60,
    )
    assert served.status_code == 200
    site.wait(lambda: "refusals" not in site.server()["status"], lambda: "one answer is not noticed", 120)
