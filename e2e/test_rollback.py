"""A spec that only the model can refuse: the former pods serve on, the reason is told, and a good spec heals."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from live_site import SERVED_NAME, Site

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

ABOVE_WINDOW = 9000
"""Of SmolLM2, which is 8192; the API server cannot know."""


@contextmanager
def asking(site: Site) -> Iterator[list[str]]:
    """One small request after the other, while the block runs; every answer that is not 200 is in the list."""
    faults: list[str] = []
    url, stopped = f"{site.address()}/v1/completions", False

    def ask() -> None:
        while not stopped:
            try:
                body = {"model": SERVED_NAME, "prompt": "Hello", "max_tokens": 1}
                answer = httpx.post(url, json=body, timeout=60)
                faults.extend([] if answer.status_code == 200 else [f"{answer.status_code}: {answer.text}"])
            except httpx.HTTPError as error:
                faults.append(repr(error))
            time.sleep(0.2)

    with ThreadPoolExecutor(1) as thread:
        client = thread.submit(ask)
        try:
            yield faults
        finally:
            stopped = True
        client.result()


def test_a_context_above_the_window_is_taken_back(site: Site) -> None:
    """Before, the old pods went when the new ones began to crash."""
    site.apply()
    site.wait_ready()
    pods = site.identities()
    with asking(site) as faults:
        site.apply(contextLength=ABOVE_WINDOW)
        ready = site.wait_reason("ConfigurationRejected")
        assert (ready["status"], site.condition("Accepted")["status"]) == ("False", "False")
        assert "9,000" in ready["message"]
        assert "8,192" in ready["message"]
        assert site.condition("Available")["status"] == "True"
        site.wait(lambda: site.identities() == pods, lambda: f"the refused pods stay: {site.identities()}", 90)
        assert site.budget()["context_length"] == 2048
        generation = site.server()["metadata"]["generation"]
        assert site.server()["status"]["observedGeneration"] == generation == ready["observedGeneration"]

        site.apply()
        site.wait_ready()
        assert site.identities() == pods

        site.apply(contextLength=1024, maxOutput={"default": 512})
        site.wait_ready()
        assert site.condition("Accepted")["status"] == "True"
        assert site.budget()["context_length"] == 1024
    assert faults == []


def test_without_a_former_configuration_the_next_good_one_serves(site: Site) -> None:
    site.apply(contextLength=ABOVE_WINDOW)
    ready = site.wait_reason("ConfigurationRejected")
    assert "9,000" in ready["message"]
    assert site.condition("Available")["status"] == "False"
    site.apply()
    site.wait_ready()
    assert site.budget()["context_length"] == 2048
