"""Real clients with a short patience and two retries, on one slot that a runaway holds: one generation each.

What happened before: a plain answer that took longer than its client's patience was thrown away, and computed again for
each retry, while whoever waited behind it hung up and came again too. The SDKs say in a header when they will hang up.
Their patience is 2 s here, and the server is so slow that the runaway would take at least 10; one scene has the 20 s of
a real client, and a runaway of at least 50.
"""

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import anthropic
import openai
import pytest

from doubles.server import MODEL, ScriptedServer, scripted_server, wait_until

PATIENCE_SECONDS = 2.0
RETRIES = 2
RUNAWAY, SHORT, DEFAULT = 5000, 4, 16
SETTINGS: Mapping[str, Any] = {
    "context_length": 6000,
    "max_output_default": DEFAULT,
    "running_slots": 1,
    "page_size": 64,
    "before_step": lambda step: time.sleep(0.002),
}
PATIENCE: Mapping[str, Any] = {"api_key": "none", "timeout": PATIENCE_SECONDS, "max_retries": RETRIES}
Ask = Callable[[str, str, int], Any]
"""(address, text, output limit) -> what the SDK gives."""


def _chat(url: str, text: str, limit: int, **patience: Any) -> Any:
    with openai.OpenAI(base_url=f"{url}/v1", **{**PATIENCE, **patience}) as client:
        return client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": text}], max_completion_tokens=limit
        )


def _completion(url: str, text: str, limit: int) -> Any:
    with openai.OpenAI(base_url=f"{url}/v1", **PATIENCE) as client:
        return client.completions.create(model=MODEL, prompt=text, max_tokens=limit)


def _response(url: str, text: str, limit: int) -> Any:
    with openai.OpenAI(base_url=f"{url}/v1", **PATIENCE) as client:
        return client.responses.create(model=MODEL, input=text, max_output_tokens=limit)


def _message(url: str, text: str, limit: int) -> Any:
    with anthropic.Anthropic(base_url=url, **PATIENCE) as client:
        return client.messages.create(model=MODEL, messages=[{"role": "user", "content": text}], max_tokens=limit)


ASKS: Mapping[str, Ask] = {"chat": _chat, "completions": _completion, "responses": _response, "messages": _message}


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server(**SETTINGS) as server:
        yield server


def generations(server: ScriptedServer) -> set[str]:
    """Ids of all requests that were ever computed."""
    return {request_id for step in list(server.runner.steps) for request_id, *_ in step}


def detail_of(answer: Any) -> Any:
    """Our addition to the answer, where this route has it."""
    return (answer.choices[0] if hasattr(answer, "choices") else answer).model_extra["finish_detail"]["type"]


def assert_nothing_is_left(server: ScriptedServer) -> None:
    wait_until(lambda: server.inside == 0)
    wait_until(lambda: server.load().running == server.load().waiting == server.load().paused == 0)
    assert server.load().pages_used == 0


@pytest.mark.parametrize("name", ASKS)
def test_a_runaway_and_those_behind_it_are_one_generation_each(server: ScriptedServer, name: str) -> None:
    assert_one_generation_each(server, ASKS[name])


def test_a_runaway_and_those_behind_it_have_the_patience_of_a_real_client() -> None:
    """The same with a read timeout of 20 s and two retries."""
    slow = {**SETTINGS, "before_step": lambda step: time.sleep(0.01)}
    with scripted_server(**slow) as server:
        assert_one_generation_each(server, functools.partial(_chat, timeout=20.0, max_retries=2))


def assert_one_generation_each(server: ScriptedServer, ask: Ask) -> None:
    answers: dict[str, Any] = {}

    def keep(text: str, limit: int) -> None:
        answers[text] = ask(server.url, text, limit)

    threads = [threading.Thread(target=keep, args=("runaway", RUNAWAY))]
    threads[0].start()
    wait_until(lambda: server.runner.num_steps > 2 * DEFAULT)
    threads += [threading.Thread(target=keep, args=(f"short {number}", SHORT)) for number in range(4)]
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join()
    assert {text: detail_of(answer) for text, answer in answers.items()} == {
        "runaway": "deadline",
        **{f"short {number}": "request" for number in range(4)},
    }
    assert len(generations(server)) == 5
    assert_nothing_is_left(server)


def test_a_server_that_does_not_listen_computes_everything_three_times() -> None:
    """The control: the same client, and the fault that the header ends."""
    with scripted_server(honour_client_deadlines=False, **SETTINGS) as server:
        with pytest.raises(openai.APITimeoutError):
            _completion(server.url, "runaway", RUNAWAY)
        assert len(generations(server)) == 1 + RETRIES
        assert_nothing_is_left(server)


def test_who_wants_all_or_nothing_is_told_once() -> None:
    """The SDKs repeat a 504 by themselves, where a header does not say that it would take as long again."""
    with scripted_server(on_deadline="abort", **SETTINGS) as server:
        for ask, kind in ((_chat, openai.APIStatusError), (_message, anthropic.APIStatusError)):
            with pytest.raises(kind) as refused:
                ask(server.url, "runaway", RUNAWAY)
            assert refused.value.status_code == 504  # type: ignore[attr-defined]
        assert len(generations(server)) == 2
        assert_nothing_is_left(server)


def test_clients_that_go_leave_nothing_running() -> None:
    """One has the slot, one waits behind it, and both are given up, as Ctrl-C does."""

    async def leave(server: ScriptedServer) -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=RETRIES) as client:
            asks: list[asyncio.Task[Any]] = []
            for limit in (RUNAWAY, SHORT):
                ask = client.completions.create(model=MODEL, prompt="hello", max_tokens=limit)
                asks.append(asyncio.create_task(ask))
                await asyncio.to_thread(server.wait_for_inside, len(asks))
            for task in asks:
                task.cancel()
            await asyncio.gather(*asks, return_exceptions=True)

    with scripted_server(scheduling="fifo", **SETTINGS) as server:
        asyncio.run(leave(server))
        assert_nothing_is_left(server)
        assert len(generations(server)) == 1


def test_a_stream_outlives_silence_because_pings_fill_it() -> None:
    """The read timeout of an SDK is about silence: a stream that is paused or slow must not look dead."""

    def one_long_step(step: int) -> None:
        time.sleep(1.5 * PATIENCE_SECONDS if step == 6 else 0)

    with (
        scripted_server(**{**SETTINGS, "before_step": one_long_step}) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", **PATIENCE) as client,
    ):
        chunks = client.completions.create(model=MODEL, prompt="hello", max_tokens=12, stream=True)
        assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == "a" * 12
        assert len(generations(server)) == 1
