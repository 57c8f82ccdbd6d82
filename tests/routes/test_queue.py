"""What waits, what is refused, and what is told when it waited too long."""

import asyncio
import time
from collections.abc import Iterator

import httpx
import pytest

from doubles.clients import Clients, send_raw
from doubles.scripted_model import Gate
from doubles.server import MODEL, ScriptedServer, scripted_server, wait_until
from plimsoll_runtime.contract import endpoints
from routes.four_routes import ASK

OVERLOADED = {endpoints.MESSAGES: (529, "overloaded_error")}
TOO_MANY = (429, "rate_limit_error")


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Holds the model's steps until a test opens it, and in any case at the end."""
    gate = Gate()
    yield gate
    gate.open.set()


def test_the_house_is_bounded_and_refusals_come_at_once(gate: Gate) -> None:
    """B21: an unbounded queue turned overload into memory growth and waits without end."""
    with scripted_server(running_slots=1, max_waiting=2, before_step=gate) as server:
        clients = Clients(server)
        for place in range(3):
            clients.send(endpoints.GENERATION_ROUTES[place], stream=place == 1)
            server.wait_for_inside(place + 1)
        for route in endpoints.GENERATION_ROUTES:
            for stream in (False, True):
                _assert_refused_at_once(server, route, stream)
        assert server.client.get(endpoints.LIVEZ).status_code == 200
        assert server.client.get(endpoints.READYZ).status_code == 200
        gate.open.set()
        assert clients.statuses() == [200, 200, 200]
        server.wait_for_inside(0)


def _assert_refused_at_once(server: ScriptedServer, route: str, stream: bool) -> None:
    ask = ASK[route]
    body = {"model": MODEL, "stream": stream, **ask.body("x" * 500)}
    answer = server.client.post(route, json=body)
    status, kind = OVERLOADED.get(route, TOO_MANY)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert answer.json()["error"]["type"] == kind
    wrong = server.client.post(route, json={**body, ask.limit_field: 0})
    assert wrong.status_code == 400, "a bad request is 400 even when the house is full"


@pytest.mark.parametrize("route", endpoints.GENERATION_ROUTES)
def test_an_answer_cut_by_the_end_of_the_grace_says_when_to_come_again(route: str) -> None:
    """What happened before: a plain answer cut at the end of the drain was a 503 without Retry-After."""
    with scripted_server(context_length=30_000, page_size=64, before_step=lambda step: time.sleep(0.002)) as server:
        clients = Clients(server)
        clients.send(route, limit=20_000)
        wait_until(lambda: server.load().running == 1)
        assert server.front.service is not None
        asyncio.run_coroutine_threadsafe(server.front.service.drain(0), server.loop)
        assert clients.statuses() == [OVERLOADED.get(route, (503,))[0]]
        assert int(clients.answers[0].headers["retry-after"]) >= 1


def test_no_queue_means_running_slots_only(gate: Gate) -> None:
    with scripted_server(running_slots=2, max_waiting=0, before_step=gate) as server:
        clients = Clients(server)
        for place in range(2):
            clients.send(endpoints.CHAT_COMPLETIONS)
            server.wait_for_inside(place + 1)
        clients.send(endpoints.CHAT_COMPLETIONS)
        wait_until(lambda: len(clients.answers) == 1)
        gate.open.set()
        assert clients.statuses() == [200, 200, 429]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("route", endpoints.GENERATION_ROUTES)
def test_a_wait_beyond_the_queue_timeout_is_a_plain_status(route: str, stream: bool) -> None:
    """B22: waits had no limit, or ended as a 200 with a late error."""
    with scripted_server(
        running_slots=1, queue_timeout=0.2, context_length=50_000, page_size=512, before_step=_slowly
    ) as server:
        runaway = send_raw(server, endpoints.CHAT_COMPLETIONS, "hello", False)
        wait_until(lambda: server.load().running == 1)
        body = {"model": MODEL, "stream": stream, **ASK[route].body("hello")}
        answer = server.client.post(route, json=body)
        status, kind = OVERLOADED.get(route, TOO_MANY)
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)
        assert "no running slot" in answer.json()["error"]["message"]
        assert int(answer.headers["retry-after"]) >= 1
        assert server.load().waiting == 0
        runaway.close()


def _slowly(step: int) -> None:
    time.sleep(0.005)


def test_a_client_that_leaves_the_queue_is_never_prefilled(gate: Gate) -> None:
    """B22: requests whose clients had gone were still run later."""
    with scripted_server(running_slots=1, before_step=gate) as server:
        clients = Clients(server)
        clients.send(endpoints.CHAT_COMPLETIONS)
        wait_until(gate.entered.is_set)
        body = {"model": MODEL, **ASK[endpoints.COMPLETIONS].body("z" * 9)}
        with pytest.raises(httpx.ReadTimeout):
            server.client.post(endpoints.COMPLETIONS, json=body, timeout=0.3)
        server.wait_for_inside(1)
        gate.open.set()
        assert clients.statuses() == [200]
        prefilled = [chunk for step in server.runner.steps for chunk in step if chunk[3] == 9]
        assert prefilled == []


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("route", endpoints.GENERATION_ROUTES)
def test_a_running_request_ends_at_the_request_timeout_with_what_it_has(route: str, stream: bool) -> None:
    with scripted_server(request_timeout=0.3, context_length=50_000, page_size=512, before_step=_slowly) as server:
        body = {"model": MODEL, "stream": stream, ASK[route].limit_field: 40_000, **ASK[route].body("hello")}
        answer = server.client.post(route, json=body)
        assert answer.status_code == 200
        assert '"deadline"' in answer.text
        if not stream:
            assert answer.headers[endpoints.HEADER_FINISH_DETAIL] == "deadline"
            assert 0 < ASK[route].output_tokens(answer.json()) < 40_000
        server.wait_for_inside(0)


def test_counting_and_asking_for_a_budget_work_while_every_place_is_taken(gate: Gate) -> None:
    with scripted_server(running_slots=1, max_waiting=0, before_step=gate) as server:
        clients = Clients(server)
        clients.send(endpoints.CHAT_COMPLETIONS)
        wait_until(gate.entered.is_set)
        messages = {"model": MODEL, **ASK[endpoints.MESSAGES].body("hello")}
        counted = server.client.post(endpoints.COUNT_TOKENS, json=messages)
        assert counted.json() == {"input_tokens": 5}
        budget = {"route": endpoints.MESSAGES, "request": messages}
        assert server.client.post(endpoints.DECIDE_BUDGET, json=budget).json()["admitted"] is True
        gate.open.set()
        assert clients.statuses() == [200]
