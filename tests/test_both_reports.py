"""The two true reports that this product exists to end, replayed on every route."""

import threading
from typing import Any

import pytest

from doubles.server import MODEL, ScriptedServer, scripted_server, wait_until
from plimsoll_runtime.contract import endpoints
from routes.four_routes import ASK
from test_every_route import ABSENT, ask_route

DEFAULT = 40


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("route", endpoints.GENERATION_ROUTES)
def test_report_1_the_default_reaches_every_route_exactly(route: str, stream: bool) -> None:
    """A default of 4096 was read by one of four routes; the others ran to 32767, and each count was one short (B01)."""
    with scripted_server(context_length=128, max_output_default=DEFAULT) as server:
        for sent, granted in ((ABSENT, DEFAULT), (8, 8), (DEFAULT + 1, DEFAULT + 1)):
            answer = ask_route(server, route, sent, stream, {})
            assert ASK[route].output_tokens(answer.body) == granted


@pytest.mark.parametrize("route", endpoints.GENERATION_ROUTES)
def test_report_1_without_any_setting_the_documented_constant_applies(route: str) -> None:
    with scripted_server(context_length=8192, page_size=64) as server:
        answer = ask_route(server, route, ABSENT, False, {})
        assert ASK[route].output_tokens(answer.body) == 4096


def test_report_1_short_requests_behind_a_runaway_are_served_within_its_grant() -> None:
    """Three runaways held the only slot for nine minutes each, and everyone queued behind them for 8.5 (B20).

    Now a runaway ends at its grant, and whoever waits longer than the queue timeout is told so, never left in silence.
    """
    with scripted_server(
        context_length=4096, max_output_default=64, running_slots=1, queue_timeout=600, page_size=64
    ) as server:
        runaway = threading.Thread(target=_post, args=(server, endpoints.CHAT_COMPLETIONS, 2000))
        runaway.start()
        wait_until(lambda: server.load().running == 1)
        tokens = [_post(server, route, 3) for route in endpoints.GENERATION_ROUTES[:3]]
        runaway.join()
        assert tokens == [3, 3, 3]
        assert server.load().running == server.load().waiting == 0


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("route", endpoints.GENERATION_ROUTES)
def test_report_2_the_8192_trap(route: str, stream: bool) -> None:
    """A client that asks for as much output as the context is long was refused every time: 111 + 8192 > 8192.

    Clamp grants the room and says so; Refuse is a 400 with every number.
    """
    prompt = "x" * 111
    with scripted_server(context_length=512, page_size=16) as server:
        answer = ask_route(server, route, 512, stream, {}, prompt)
        assert answer.headers[endpoints.HEADER_MAX_OUTPUT_TOKENS] == str(512 - 111)
        assert answer.headers[endpoints.HEADER_LIMITED_BY] == "context"
        assert ASK[route].output_tokens(answer.body) == 512 - 111
        refused = ask_route(server, route, 512, stream, {endpoints.HEADER_OVER_BUDGET: "refuse"}, prompt)
        assert refused.status == 400
        error = refused.body["error"]
        numbers = (error["prompt_tokens"], error["requested_output_tokens"], error["context_length"])
        assert numbers == (111, 512, 512)


def _post(server: ScriptedServer, route: str, limit: int) -> Any:
    ask = ASK[route]
    body = {"model": MODEL, "ignore_eos": True, ask.limit_field: limit, **ask.body("hello")}
    return ask.output_tokens(server.client.post(route, json=body).json())
