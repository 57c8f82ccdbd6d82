"""The official client's own accumulator reads every kind of chat stream, and gets what the plain call gets."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from doubles.server import MODEL, ScriptedServer, wait_until
from routes.one_server import answering_server

FAR_LIMIT = 16_000
"""So many steps of the scripted model that an abort comes long before."""


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with answering_server(max_output_default=20, context_length=20_000) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ScriptedServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def arguments(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": prompt}], **fields}


def accumulated(client: openai.OpenAI, prompt: str, **fields: Any) -> ChatCompletion:
    """What the client's stream helper has put together when the stream is over."""
    with client.chat.completions.stream(
        **arguments(prompt, **fields), stream_options={"include_usage": True}
    ) as stream:
        return stream.until_done().current_completion_snapshot


STREAMS: list[Any] = [
    pytest.param("greet", {}, ("Hello 🌍!", "stop", 7), id="B57-ended-by-the-model"),
    pytest.param("greet", {"max_completion_tokens": 1}, ("Hel", "length", 1), id="B02-one-token"),
    pytest.param("greet", {"max_tokens": 2}, ("Hello", "length", 2), id="B08-deprecated-name"),
    pytest.param("greet", {"max_completion_tokens": 7}, ("Hello 🌍!", "stop", 7), id="B02-end-token-is-last-granted"),
    pytest.param("greet", {"max_completion_tokens": 6}, ("Hello 🌍!", "length", 6), id="B02-end-token-is-too-many"),
    pytest.param("forever", {"max_completion_tokens": 5}, ("aaaaa", "length", 5), id="B02-five-tokens"),
    pytest.param("forever", {}, ("a" * 20, "length", 20), id="B01-default-limit"),
    pytest.param("stop", {"stop": ["STOP"]}, ("A B ", "stop", 3), id="B50-stop-across-tokens"),
]


@pytest.mark.parametrize(("prompt", "fields", "expected"), STREAMS)
def test_the_stream_and_the_plain_call_say_the_same(
    client: openai.OpenAI, prompt: str, fields: dict[str, Any], expected: tuple[str, str, int]
) -> None:
    """B02: a run cut by the limit reported one token fewer than the limit."""
    text, reason, num_tokens = expected
    fields = {**fields, "logprobs": True, "top_logprobs": 2}
    plain = client.chat.completions.create(**arguments(prompt, **fields))
    stream = accumulated(client, prompt, **fields)
    for answer in (plain, stream):
        choice = answer.choices[0]
        assert (choice.message.content, choice.finish_reason) == (text, reason)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == num_tokens
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + num_tokens
    first, second = plain.choices[0].logprobs, stream.choices[0].logprobs
    assert first is not None
    assert first.content is not None
    assert second is not None
    assert first.content == second.content
    if reason == "length":
        assert len(first.content) == num_tokens


def test_choices_of_one_request_arrive_whole(client: openai.OpenAI) -> None:
    stream = accumulated(client, "greet", n=3)
    assert [choice.message.content for choice in stream.choices] == ["Hello 🌍!"] * 3
    assert [choice.index for choice in stream.choices] == [0, 1, 2]
    assert stream.usage is not None
    assert stream.usage.completion_tokens == 21


async def test_the_async_client_reads_it_too(server: ScriptedServer) -> None:
    async with (
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
        client.chat.completions.stream(**arguments("greet")) as stream,
    ):
        assert (await stream.get_final_completion()).choices[0].message.content == "Hello 🌍!"


def chunks(client: openai.OpenAI, prompt: str, **fields: Any) -> list[ChatCompletionChunk]:
    return list(client.chat.completions.create(**arguments(prompt, stream=True, **fields)))


def test_the_last_chunk_says_what_ended_the_choice(client: openai.OpenAI) -> None:
    cut = chunks(client, "forever", max_completion_tokens=3)[-1].choices[0]
    assert (cut.model_extra or {})["finish_detail"] == {"type": "request", "at": 3}
    stopped = chunks(client, "stop", stop="STOP")[-1].choices[0]
    assert (stopped.model_extra or {})["matched_stop"] == "STOP"


def test_a_stream_that_breaks_raises_in_the_client(client: openai.OpenAI) -> None:
    """B44: an exception mid-stream closed the socket with no error, or the client hung for ever."""
    seen = ""
    with pytest.raises(openai.APIError) as raised:  # noqa: PT012 the deltas before the error are the point
        for chunk in client.chat.completions.create(**arguments("broken", stream=True)):
            seen += chunk.choices[0].delta.content or ""
    assert seen == "aaa"
    assert (raised.value.code, raised.value.type) == ("engine_failure", "server_error")


def test_a_client_that_leaves_frees_its_slot(server: ScriptedServer, client: openai.OpenAI) -> None:
    """B36: the server went on generating to the limit after the client had left."""
    steps = server.runner.num_steps
    stream = client.chat.completions.create(**arguments("forever", stream=True, max_tokens=FAR_LIMIT))
    next(iter(stream))
    stream.close()
    wait_until(lambda: server.load().running == 0)
    assert server.runner.num_steps - steps < FAR_LIMIT
    assert accumulated(client, "greet").choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        pytest.param({"max_completion_tokens": 0}, "integer_below_min_value", "max_completion_tokens", id="B05"),
        pytest.param({"max_tokens": "8"}, "invalid_type", "max_tokens", id="B06"),
        pytest.param(
            {"max_tokens": 8, "max_completion_tokens": 64},
            "invalid_parameter_combination",
            "max_completion_tokens",
            id="B08",
        ),
        pytest.param({"messages": []}, "invalid_value", "messages", id="B61"),
        pytest.param({"top_logprobs": 3}, "invalid_parameter_combination", "top_logprobs", id="B35"),
        pytest.param(
            {"tools": [{"type": "function", "function": {"name": "f"}}]}, "unsupported_parameter", "tools", id="B80"
        ),
    ],
)
def test_a_refusal_is_a_plain_400_whether_streamed_or_not(
    client: openai.OpenAI, fields: dict[str, Any], code: str, param: str, stream: bool
) -> None:
    """B45: validation errors on streamed requests came back as 200 with the error inside."""
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(**{**arguments("greet"), **fields}, stream=stream)
    error = raised.value
    assert (error.code, error.param, error.type) == (code, param, "invalid_request_error")
