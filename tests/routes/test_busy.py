"""While one request is large or slow, the others are served: health, streams, and the order of arrival."""

import json
import threading
import time

import httpx
import pytest

from doubles.clients import Clients
from doubles.scripted_model import Gate
from doubles.server import MODEL, scripted_server, wait_until
from plimsoll_runtime.contract import endpoints
from plimsoll_runtime.routes import front as front_module
from routes.four_routes import ASK

LARGE = 20 * 1024 * 1024


@pytest.mark.parametrize("route", endpoints.GENERATION_ROUTES)
def test_a_huge_prompt_does_not_stop_health_or_other_streams(route: str) -> None:
    """B23: templating and tokenizing ran on the event loop; health froze for 29 s and a healthy pod was killed.

    The patience per health check is that of a kubelet, one second; the huge request is refused with its token count.
    """
    with scripted_server(context_length=20_000, page_size=64) as server:
        body = {"model": MODEL, **ASK[route].body("x" * LARGE)}
        answers: list[httpx.Response] = []
        payload = json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        post = threading.Thread(
            target=lambda: answers.append(server.client.post(route, content=payload, headers=headers))
        )
        clients = Clients(server)
        clients.send(endpoints.COMPLETIONS, limit=2000, stream=True)
        post.start()
        while post.is_alive():
            assert server.client.get(endpoints.LIVEZ, timeout=5).status_code == 200
            time.sleep(0.05)
        assert [answer.status_code for answer in answers] == [400]
        assert "at the least" in answers[0].json()["error"]["message"]
        assert clients.statuses() == [200]


def test_a_running_stream_waits_at_most_one_chunk_while_a_long_prompt_is_prefilled() -> None:
    """B20: a long prefill froze every running stream. Here no step computes more than its budget, and every step that
    prefills decodes the running stream too."""
    with scripted_server(running_slots=2, context_length=4096, page_size=16) as server:
        clients = Clients(server)
        clients.send(endpoints.CHAT_COMPLETIONS, limit=1000, stream=True)
        wait_until(lambda: server.load().running == 1)
        clients.send(endpoints.CHAT_COMPLETIONS, limit=1, text="y" * 2000)
        assert clients.statuses() == [200, 200]
        chunked = [step for step in server.runner.steps if any(tokens > 1 for *_, tokens in step) and len(step) > 1]
        assert len(chunked) >= 2000 // 32
        for step in chunked:
            assert step[0][3] == 1, "decoding comes first"
            assert sum(tokens for *_, tokens in step) <= 18


def test_equals_are_served_in_order_of_arrival() -> None:
    gate = Gate()
    with scripted_server(running_slots=1, before_step=gate) as server:
        clients = Clients(server)
        for number in range(6):
            clients.send(endpoints.COMPLETIONS, limit=2, text="z" * (number + 5))
            server.wait_for_inside(number + 1)
        gate.open.set()
        assert clients.statuses() == [200] * 6
        prompts = [chunk[3] for step in server.runner.steps for chunk in step if chunk[2] == 0]
        assert prompts == sorted(prompts)


def test_a_stuck_step_turns_readiness_off_first_and_liveness_only_after_its_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B114, B123: a long step got a working pod killed; elsewhere a wedged engine stayed ready for ever."""
    gate = Gate()
    with scripted_server(before_step=gate) as server:
        clients = Clients(server)
        clients.send(endpoints.CHAT_COMPLETIONS)
        wait_until(gate.entered.is_set)
        assert server.client.get(endpoints.READYZ).status_code == 200
        monkeypatch.setattr(front_module, "READY_STEP_SECONDS", 0.0)
        assert server.client.get(endpoints.READYZ).status_code == 503
        assert server.client.get(endpoints.LIVEZ).status_code == 200
        monkeypatch.setattr(front_module, "LIVE_STEP_SECONDS", 0.0)
        assert server.client.get(endpoints.LIVEZ).status_code == 503
        gate.open.set()
        assert clients.statuses() == [200]
        wait_until(lambda: server.load().running == 0)
        assert server.front.is_live() is False or server.load().running == 0


def test_silence_in_a_stream_is_filled_with_pings() -> None:
    """A stream that said nothing for minutes was cut by its client's watchdog."""
    gate = Gate()

    def after_the_first(step: int) -> None:
        if step > 2:
            gate(step)

    with scripted_server(before_step=after_the_first, ping_seconds=0.05) as server:
        for route, ping in ((endpoints.CHAT_COMPLETIONS, ": ping"), (endpoints.MESSAGES, "event: ping")):
            gate.open.clear()
            body = {
                "model": MODEL,
                "stream": True,
                "ignore_eos": True,
                ASK[route].limit_field: 4,
                **ASK[route].body("hi"),
            }
            with server.client.stream("POST", route, json=body) as answer:
                seen = ""
                for text in answer.iter_text():
                    seen += text
                    if seen.count(ping) >= 3:
                        gate.open.set()
            assert seen.count(ping) >= 3
            server.runner.num_steps = 0
