"""The official `openai` client reads our responses and streams with its own accumulators."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response

from doubles.server import MODEL, ScriptedServer, wait_until
from routes.one_server import CONTEXT, UNICODE_TEXT, answering_server


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with answering_server() as running:
        yield running


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def streamed(client: OpenAI, **fields: Any) -> tuple[str, Response]:
    """The text of the deltas, and the object of the last event."""
    text = ""
    last: Any = None
    with client.responses.stream(model=MODEL, **fields) as stream:
        for event in stream:
            last = event
            if event.type == "response.output_text.delta":
                text += event.delta
    return text, last.response


def shown(response: Response) -> tuple[Any, ...]:
    """What a plain and a streamed answer must agree in."""
    message = response.output[0]
    assert message.type == "message"
    assert response.usage is not None
    reason = None if response.incomplete_details is None else response.incomplete_details.reason
    return response.output_text, response.status, message.status, reason, response.usage.output_tokens


@pytest.mark.parametrize(
    ("prompt", "fields", "expected"),
    [
        ("normal", {}, ("Hello!", "completed", "completed", None, 4)),
        ("empty", {}, ("", "completed", "completed", None, 1)),
        pytest.param("unicode", {}, (UNICODE_TEXT, "completed", "completed", None, 6), id="B57 split characters"),
        pytest.param(
            "stop", {"extra_body": {"stop": ["STOP"]}}, ("A B ", "completed", "completed", None, 3), id="stop string"
        ),
        pytest.param(
            "forever",
            {"max_output_tokens": 5},
            ("aaaaa", "incomplete", "incomplete", "max_output_tokens", 5),
            id="B02 B13 length",
        ),
        pytest.param(
            "forever",
            {},
            ("a" * (CONTEXT - 7), "incomplete", "incomplete", "max_output_tokens", CONTEXT - 7),
            id="B13 context",
        ),
    ],
)
def test_plain_and_streamed_agree(
    client: OpenAI, prompt: str, fields: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    plain = client.responses.create(model=MODEL, input=prompt, **fields)
    text, last = streamed(client, input=prompt, **fields)
    assert shown(plain) == shown(last) == expected
    assert text == plain.output_text


def test_the_final_response_of_a_completed_stream(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="normal") as stream:
        final = stream.get_final_response()
    assert (final.output_text, final.status) == ("Hello!", "completed")


def test_an_error_in_the_middle_reaches_the_caller(client: OpenAI) -> None:
    """B44: others closed the connection without a word."""
    text, last = streamed(client, input="broken")
    assert (text, last.status) == ("aaa", "failed")
    assert last.error is not None
    assert last.error.code == "server_error"


def test_a_refusal_of_a_stream_is_a_plain_answer(client: OpenAI) -> None:
    """B45: others answered 200 with an error inside."""
    with (
        pytest.raises(openai.BadRequestError) as refusal,
        client.responses.stream(model=MODEL, input="normal", background=True),
    ):
        pass
    assert refusal.value.param == "background"


def test_leaving_a_stream_frees_its_slot(client: OpenAI, server: ScriptedServer) -> None:
    with client.responses.stream(model=MODEL, input="forever") as stream:
        next(event for event in stream if event.type == "response.output_text.delta")
    wait_until(lambda: server.load().running == 0)


def test_a_conversation_goes_on_by_its_id(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="normal", instructions="Be brief. ")
    second = client.responses.create(model=MODEL, input="empty", previous_response_id=first.id)
    assert second.usage is not None
    assert second.usage.input_tokens == len("normalHello!empty"), "instructions are not carried over"
    assert second.previous_response_id == first.id


def test_a_streamed_answer_is_stored_too(client: OpenAI) -> None:
    _, first = streamed(client, input="normal")
    assert client.responses.retrieve(first.id).output_text == "Hello!"
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as refusal:
        client.responses.create(model=MODEL, input="empty", previous_response_id=first.id)
    assert (refusal.value.code, refusal.value.param) == ("previous_response_not_found", "previous_response_id")


def test_what_was_not_to_be_stored_is_not_found(client: OpenAI) -> None:
    response = client.responses.create(model=MODEL, input="normal", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(response.id)


def test_logprobs_come_with_the_text(client: OpenAI) -> None:
    response = client.responses.create(
        model=MODEL, input="normal", include=["message.output_text.logprobs"], top_logprobs=1
    )
    message = response.output[0]
    assert message.type == "message"
    part = message.content[0]
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert [entry.token for entry in part.logprobs][:3] == ["Hel", "lo", "!"]


def test_an_answer_can_be_sent_back_as_items(client: OpenAI) -> None:
    """B69: never a 400 for an item that the server itself made."""
    first = client.responses.create(model=MODEL, input="normal")
    items: list[Any] = [
        {"role": "user", "content": "normal"},
        *[item.to_dict() for item in first.output],
        {"role": "user", "content": "empty"},
    ]
    second = client.responses.create(model=MODEL, input=items)
    assert second.usage is not None
    assert second.usage.input_tokens == len("normalHello!empty")
