"""The official client reads every kind of completions answer, streamed and plain."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types import Completion

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


def plain(client: openai.OpenAI, **fields: Any) -> Completion:
    answer = client.completions.create(**{"model": MODEL, "prompt": "greet", **fields})
    assert isinstance(answer, Completion)
    return answer


def streamed(client: openai.OpenAI, **fields: Any) -> list[Completion]:
    options = {"include_usage": True}
    fields = {"model": MODEL, "prompt": "greet", "stream": True, "stream_options": options, **fields}
    return list(client.completions.create(**fields))


def texts_of(chunks: list[Completion]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    return texts


STREAMS: list[Any] = [
    pytest.param({}, ("Hello 🌍!", "stop", 7), id="B57-ended-by-the-model"),
    pytest.param({"max_tokens": 1}, ("Hel", "length", 1), id="B02-one-token"),
    pytest.param({"prompt": "forever"}, ("a" * 20, "length", 20), id="B01-default-limit"),
    pytest.param({"prompt": "stop", "stop": "STOP"}, ("A B ", "stop", 3), id="B50-stop-across-tokens"),
    pytest.param({"echo": True, "max_tokens": 2}, ("greetHello", "length", 2), id="B35-echo"),
    pytest.param({"prompt": list(b"greet")}, ("Hello 🌍!", "stop", 7), id="B33-token-ids"),
]


@pytest.mark.parametrize(("fields", "expected"), STREAMS)
def test_the_stream_and_the_plain_call_say_the_same(
    client: openai.OpenAI, fields: dict[str, Any], expected: tuple[str, str, int]
) -> None:
    text, reason, num_tokens = expected
    answer, chunks = plain(client, **fields), streamed(client, **fields)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (text, reason)
    assert (texts_of(chunks), chunks[-2].choices[0].finish_reason) == ({0: text}, reason)
    for usage in (answer.usage, chunks[-1].usage):
        assert usage is not None
        assert usage.completion_tokens == num_tokens


def test_prompts_and_choices_are_numbered_through(client: openai.OpenAI) -> None:
    """Index = prompt x n + j, in both modes; the prompt's tokens are counted once each."""
    fields: dict[str, Any] = {"prompt": ["greet", "stop"], "n": 2, "max_tokens": 1}
    answer, chunks = plain(client, **fields), streamed(client, **fields)
    expected = {0: "Hel", 1: "Hel", 2: "A B ", 3: "A B "}
    assert {choice.index: choice.text for choice in answer.choices} == texts_of(chunks) == expected
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (9, 4)


@pytest.mark.parametrize("count", [0, 5])
@pytest.mark.parametrize("stream", [False, True])
def test_echo_scores_prompt_and_answer(client: openai.OpenAI, count: int, stream: bool) -> None:
    """B35: scoring clients send `echo` and `logprobs`; only the token written used to be scored. B34: no infinity."""
    fields: dict[str, Any] = {"echo": True, "logprobs": count, "max_tokens": 1, "logit_bias": {"65": -100}}
    answers = streamed(client, **fields) if stream else [plain(client, **fields)]
    arrays: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for answer in answers:
        for choice in answer.choices:
            for name, values in arrays.items():
                values.extend(getattr(choice.logprobs, name) if choice.logprobs else [])
    assert arrays["tokens"] == [*"greet", "Hel"]
    assert arrays["text_offset"] == [0, 1, 2, 3, 4, 5]
    assert arrays["token_logprobs"][0] is None
    assert arrays["top_logprobs"][0] is None
    assert all(value <= 0 for value in arrays["token_logprobs"][1:])
    for piece, top in list(zip(arrays["tokens"], arrays["top_logprobs"], strict=True))[1:]:
        assert piece in top
        assert max(1, count) <= len(top) <= count + 1


def test_a_stream_that_breaks_raises_in_the_client(client: openai.OpenAI) -> None:
    """B44, on this route."""
    with pytest.raises(openai.APIError) as raised:
        streamed(client, prompt="broken")
    assert raised.value.code == "engine_failure"


def test_a_client_that_leaves_frees_its_slot(server: ScriptedServer, client: openai.OpenAI) -> None:
    """B36, on this route."""
    steps = server.runner.num_steps
    stream = client.completions.create(model=MODEL, prompt="forever", stream=True, max_tokens=FAR_LIMIT)
    next(iter(stream))
    stream.close()
    wait_until(lambda: server.load().running == 0)
    assert server.runner.num_steps - steps < FAR_LIMIT
    assert plain(client).choices[0].finish_reason == "stop"


REFUSALS: list[Any] = [
    pytest.param({"logprobs": True}, "invalid_type", "logprobs", id="B35-boolean"),
    pytest.param({"logprobs": 6}, "integer_above_max_value", "logprobs", id="B35-six"),
    pytest.param({"prompt": []}, "invalid_value", "prompt", id="B19-empty-list"),
    pytest.param({"prompt": [[]]}, "invalid_value", "prompt", id="B19-empty-token-list"),
    pytest.param({"prompt": ""}, "invalid_value", "prompt", id="B19-no-start-token"),
    pytest.param({"prompt": [-1]}, "invalid_value", "prompt", id="B33-negative"),
    pytest.param({"prompt": [999_999]}, "invalid_value", "prompt", id="B33-too-large"),
    pytest.param({"prompt": [1, "a"]}, "invalid_type", "prompt", id="B33-mixed"),
    pytest.param({"best_of": 2}, "unsupported_parameter", "best_of", id="B15-best-of"),
    pytest.param({"suffix": "x"}, "unsupported_parameter", "suffix", id="B80-suffix"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "code", "param"), REFUSALS)
def test_a_refusal_is_a_plain_400_whether_streamed_or_not(
    client: openai.OpenAI, fields: dict[str, Any], code: str, param: str, stream: bool
) -> None:
    """B45, on this route."""
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(**{"model": MODEL, "prompt": "greet", **fields, "stream": stream})
    assert (raised.value.code, raised.value.param, raised.value.type) == (code, param, "invalid_request_error")
