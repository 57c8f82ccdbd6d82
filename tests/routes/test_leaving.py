"""A client that leaves frees its slot: streamed or not, queued, prefilling or decoding, on every route (B36)."""

import time

import pytest

from doubles.clients import send_raw
from doubles.server import MODEL, scripted_server, wait_until
from plimsoll_runtime.contract import endpoints
from routes.four_routes import ASK

CONTEXT = 50_000


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("route", endpoints.GENERATION_ROUTES)
@pytest.mark.parametrize("phase", ["decoding", "prefilling"])
def test_the_slot_is_free_after_the_client_left(phase: str, route: str, stream: bool) -> None:
    """What happened before: a client closed its socket, and the server went on generating to the limit."""

    def slowly(step: int) -> None:
        time.sleep(0.002)

    with scripted_server(running_slots=1, context_length=CONTEXT, page_size=512, before_step=slowly) as server:
        text = "hello" if phase == "decoding" else "x" * 16_000
        connection = send_raw(server, route, text, stream)
        wait_until(lambda: server.runner.num_steps > 3)
        assert server.load().running == 1
        connection.close()
        wait_until(lambda: server.load().running == 0)
        assert server.load().pages_used == 0
        steps = server.runner.num_steps
        answer = server.client.post(route, json={"model": MODEL, **ASK[route].body("next"), ASK[route].limit_field: 2})
        assert ASK[route].output_tokens(answer.json()) == 2
        assert server.runner.num_steps <= steps + 4, "the abandoned request went on computing"
        metrics = server.client.get(endpoints.METRICS).text
        assert f'plimsoll_requests_total{{outcome="cancelled",route="{route}"}} 1.0' in metrics
