"""The official `anthropic` client reads our answers and streams with its own accumulators."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic
from anthropic.types import Message

from doubles.server import MODEL, ScriptedServer, wait_until
from routes.one_server import CONTEXT, UNICODE_TEXT, answering_server


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with answering_server() as running:
        yield running


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.url, api_key="none", max_retries=0) as made:
        yield made


def asked(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": prompt}], **fields}


def streamed(client: Anthropic, **fields: Any) -> Message:
    with client.messages.stream(**fields) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text == text_of(message)
    return message


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


@pytest.mark.parametrize(
    ("prompt", "fields", "text", "stop_reason"),
    [
        ("normal", {}, "Hello!", "end_turn"),
        ("empty", {}, "", "end_turn"),
        pytest.param("unicode", {}, UNICODE_TEXT, "end_turn", id="B57 characters over several tokens"),
        pytest.param("stop", {"stop_sequences": ["STOP"]}, "A B ", "stop_sequence", id="B54 stop string"),
        pytest.param("forever", {"max_tokens": 5}, "aaaaa", "max_tokens", id="B02 length"),
        pytest.param("forever", {"max_tokens": 1}, "a", "max_tokens", id="B02 one token"),
        pytest.param(
            "forever",
            {"max_tokens": 10 * CONTEXT},
            "a" * (CONTEXT - len("forever")),
            "model_context_window_exceeded",
            id="context",
        ),
    ],
)
def test_plain_and_streamed_agree(
    client: Anthropic, prompt: str, fields: dict[str, Any], text: str, stop_reason: str
) -> None:
    plain = client.messages.create(**asked(prompt, **fields))
    stream = streamed(client, **asked(prompt, **fields))
    for message in (plain, stream):
        assert (text_of(message), message.stop_reason) == (text, stop_reason)
        assert message.stop_sequence == ("STOP" if stop_reason == "stop_sequence" else None)
        assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) == len(prompt)
    assert stream.usage.output_tokens == plain.usage.output_tokens


def test_a_limit_is_reached_exactly(client: Anthropic) -> None:
    """B02: others reported one token fewer than the limit."""
    message = client.messages.create(**asked("forever", max_tokens=5))
    assert message.usage.output_tokens == 5


def test_max_tokens_zero_is_refused(client: Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(**asked("normal", max_tokens=0))


def test_an_error_in_the_middle_reaches_the_caller(client: Anthropic) -> None:
    """B44: others closed the connection without a word."""
    seen: list[str] = []
    with pytest.raises(anthropic.APIStatusError) as failure, client.messages.stream(**asked("broken")) as stream:
        seen.extend(stream.text_stream)
    assert "".join(seen) == "aaa"
    assert isinstance(failure.value.body, dict)
    assert failure.value.body["error"]["type"] == "api_error"


def test_a_refusal_of_a_stream_is_a_plain_answer(client: Anthropic) -> None:
    """B45: others answered 200 with an error inside."""
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    with (
        pytest.raises(anthropic.BadRequestError, match="tools"),
        client.messages.stream(**asked("normal", tools=tools)),
    ):
        pass


def test_leaving_a_stream_frees_its_slot(client: Anthropic, server: ScriptedServer) -> None:
    with client.messages.stream(**asked("forever", max_tokens=50)) as stream:
        next(iter(stream.text_stream))
    wait_until(lambda: server.load().running == 0)


def test_tokens_can_be_counted(client: Anthropic) -> None:
    """A conversation that ends with the assistant can be counted, though not continued."""
    messages: list[Any] = [{"role": "user", "content": "normal"}]
    assert client.messages.count_tokens(model=MODEL, messages=messages).input_tokens == len("normal")
    messages.append({"role": "assistant", "content": "Hello!"})
    counted = client.messages.count_tokens(model=MODEL, messages=messages, system="Be brief. ")
    assert counted.input_tokens == len("Be brief. normalHello!")


def test_an_answer_can_be_sent_back(client: Anthropic) -> None:
    """B69: never a 400 for a block that the server itself made."""
    first = client.messages.create(**asked("normal"))
    history: list[Any] = [
        {"role": "user", "content": "normal"},
        first.to_param(),
        {"role": "user", "content": "empty"},
    ]
    second = client.messages.create(model=MODEL, max_tokens=8, messages=history)
    assert second.usage.input_tokens + (second.usage.cache_read_input_tokens or 0) == len("normalHello!empty")
