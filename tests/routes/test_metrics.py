"""What the counters say after a storm: every request counted once, every gauge back at zero (B139)."""

import re
import threading
from time import sleep

import httpx
import pytest

from doubles.clients import Clients, send_raw
from doubles.scripted_model import NOT_A_NUMBER, Script
from doubles.server import MODEL, ScriptedServer, Vocabulary, scripted_server, wait_until
from plimsoll_runtime.contract import endpoints
from plimsoll_runtime.load_metrics import MAX_TENANTS, TENANT_DIGITS, tenant_shares
from routes.four_routes import ASK
from routes.raw_http import begun_post

TIMES = 8
"""Of each kind of ending, on each route."""


def _script(vocabulary: Vocabulary) -> Script:
    letter = vocabulary.ids(["a"])[0]

    def write(prompt: tuple[int, ...], position: int) -> int:
        text = bytes(prompt).decode()
        if text.startswith("break") and position == 2:
            return NOT_A_NUMBER
        return vocabulary.end_id if text.startswith("end") and position == 3 else letter

    return write


def test_every_request_is_counted_once_and_gauges_return_to_zero() -> None:
    """Gauges leaked when clients left, and cancelled runs vanished from the counters that autoscalers read."""
    with scripted_server(_script, context_length=40_000, page_size=64, running_slots=4, max_waiting=500) as server:
        threads = [
            threading.Thread(target=_one_of_each, args=(server, route, number))
            for route in endpoints.GENERATION_ROUTES
            for number in range(TIMES)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_until(lambda: _ended(server) == 5 * TIMES * len(endpoints.GENERATION_ROUTES), 60)
        wait_until(lambda: server.load().running == server.load().pages_used == 0)  # the last abort is on its way
        samples = _samples(server)
        for route in endpoints.GENERATION_ROUTES:
            for outcome in ("completed", "length", "cancelled", "refused", "failed"):
                key = f'plimsoll_requests_total{{outcome="{outcome}",route="{route}"}}'
                assert samples.get(key) == TIMES, key
        for gauge in ("running", "waiting", "paused"):
            assert samples[f"plimsoll_requests_{gauge}"] == 0
        assert samples['plimsoll_kv_pages{state="used"}'] == 0
        assert samples["plimsoll_request_seconds_count"] == 5 * TIMES * len(endpoints.GENERATION_ROUTES)


def _one_of_each(server: ScriptedServer, route: str, number: int) -> None:
    with httpx.Client(base_url=server.url, timeout=60, verify=False) as client:
        for text, limit in (("end", 9), ("long", 5), ("break", 9), ("refused", 0)):
            ask = ASK[route]
            body = {"model": MODEL, "stream": number % 2 == 0, ask.limit_field: limit, **ask.body(text)}
            client.post(route, json=body)
    connection = send_raw(server, route, "leave", stream=True)
    connection.recv(64)
    connection.close()


def _samples(server: ScriptedServer) -> dict[str, float]:
    text = server.client.get(endpoints.METRICS).text
    return {name: float(value) for name, value in re.findall(r"^(plimsoll_\S+(?:\{.*\})?) (\S+)$", text, re.MULTILINE)}


def _ended(server: ScriptedServer) -> float:
    return sum(value for name, value in _samples(server).items() if name.startswith("plimsoll_requests_total"))


@pytest.mark.parametrize("route", endpoints.GENERATION_ROUTES)
def test_a_client_that_leaves_in_its_body_is_counted_too(route: str) -> None:
    """What happened before: it reached the route and ended in no outcome at all."""
    with scripted_server() as server:
        with begun_post(server, route, "content-length: 100") as connected:
            connected.sendall(b"{")
        wait_until(lambda: _ended(server) == 1)
        assert _samples(server)[f'plimsoll_requests_total{{outcome="cancelled",route="{route}"}}'] == 1


def test_tokens_are_counted_as_usage_says() -> None:
    with scripted_server(_script, context_length=64) as server:
        spent = 0
        for route in endpoints.GENERATION_ROUTES:
            ask = ASK[route]
            body = {"model": MODEL, ask.limit_field: 9, **ask.body("end of it all")}
            spent += ask.output_tokens(server.client.post(route, json=body).json())
        samples = _samples(server)
        assert samples["plimsoll_output_tokens_total"] == spent == 16
        assert samples["plimsoll_prompt_tokens_total"] == 4 * len("end of it all")
        assert 0 < samples["plimsoll_cached_tokens_total"] < 3 * len("end of it all")
        assert samples['plimsoll_budget_decisions_total{limited_by="request",route="/v1/messages"}'] == 1


def test_tenants_appear_by_the_first_digits_of_a_hash_and_few_at_a_time() -> None:
    """A label for each key would be a leak, and without a bound a way to fill the memory of whoever scrapes."""
    shares = dict(tenant_shares([(f"{number:064x}"[::-1], 1.0) for number in range(1000)] + [("a" * 64, 3000.0)]))
    assert len(shares) == MAX_TENANTS
    assert all(len(name) <= TENANT_DIGITS for name in shares)
    assert shares["a" * TENANT_DIGITS] == 0.75
    assert sum(shares.values()) == pytest.approx(1)


def test_the_schedule_shows_in_the_metrics() -> None:
    with scripted_server(
        _script, running_slots=1, max_output_default=4, before_step=lambda step: sleep(0.002)
    ) as server:
        clients = Clients(server)
        clients.send(endpoints.COMPLETIONS, limit=55, text="long")
        wait_until(lambda: server.runner.num_steps > 10)
        shown = _samples(server)
        assert shown['plimsoll_tenant_share{tenant="everyone"}'] == 1
        clients.send(endpoints.COMPLETIONS, limit=3, text="short")
        assert clients.statuses() == [200, 200]
        samples = _samples(server)
        assert samples['plimsoll_preemptions_total{kind="pause"}'] >= 1
        assert samples["plimsoll_output_tokens_total"] == 58
        assert samples['plimsoll_level_tokens_total{level="1"}'] == 51
        assert samples['plimsoll_level_tokens_total{level="0"}'] == 7 + 1, "the warm-up's token is the engine's alone"
        assert samples["plimsoll_slowdown_count"] == 2
        assert samples["plimsoll_slowdown_sum"] > 2
