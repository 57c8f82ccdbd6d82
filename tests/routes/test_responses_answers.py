"""Answers of `/v1/responses`: the response object, the order of events, and that both say the same."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from plimsoll_runtime.events import AnswerEvent, Begun, Broken, FinishDetail, FinishDetailType, TextDelta
from plimsoll_runtime.request import GenerationRequest
from plimsoll_runtime.routes.dialect import Answer, AnswerFacts
from plimsoll_runtime.routes.responses import RESPONSES
from routes.one_choice import (
    REQUEST_ID,
    answer_of,
    as_json,
    cut_answers,
    data_of,
    events_of,
    facts_of,
    frames_of,
    token,
    transcript,
)


def facts(**fields: Any) -> AnswerFacts:
    request = RESPONSES.to_request({"model": "scripted", "input": "hi", **fields}, {})
    assert isinstance(request, GenerationRequest), request
    return facts_of(request)


FACTS = facts(metadata={"a": "b"}, max_output_tokens=64)
ORDER = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]
SDK_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def stream(events: list[AnswerEvent]) -> list[dict[str, Any]]:
    return data_of(frames_of(RESPONSES, FACTS, events))


def read_by_sdk(events: list[dict[str, Any]]) -> ResponseStreamState[Any]:
    """The official accumulator, which raises for an event out of order and for an identity that changes."""
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=[], text_format=omit)
    for event in events:
        state.handle_event(SDK_EVENT.validate_python(event))
    return state


@settings(deadline=None)
@given(cut_answers(with_logprobs=True))
def test_the_stream_says_what_the_plain_answer_says(case: tuple[Answer, list[AnswerEvent]]) -> None:
    """B49, and B57: each event is JSON on its own. Streams of others differed from the plain answer."""
    answer, events = case
    plain = as_json(RESPONSES.to_response(answer, FACTS))
    said = stream(events)
    deltas = [event for event in said if event["type"] == "response.output_text.delta"]
    part = plain["output"][0]["content"][0]
    assert said[-1]["response"] == plain
    assert "".join(delta["delta"] for delta in deltas) == part["text"]
    assert [entry for delta in deltas for entry in delta["logprobs"]] == part["logprobs"]
    assert next(event["item"] for event in said if event["type"] == "response.output_item.done") == plain["output"][0]
    read_by_sdk(said)


@given(cut_answers())
def test_the_order_of_events(case: tuple[Answer, list[AnswerEvent]]) -> None:
    said = stream(case[1])
    assert [event["sequence_number"] for event in said] == list(range(len(said)))
    kinds = list(dict.fromkeys(event["type"] for event in said))
    status = "incomplete" if case[0].choices[0].reason == "length" else "completed"
    text_kinds = [kind for kind in ORDER if kind in kinds or kind != "response.output_text.delta"]
    assert kinds == [*text_kinds, f"response.{status}"]


@pytest.mark.parametrize("detail", ["request", "default", "limit", "context", "deadline"])
def test_a_cut_answer_is_incomplete_everywhere(detail: FinishDetailType) -> None:
    """B13, B02: others said `completed`, of the response or of its item."""
    answer = answer_of("Hello", reason="length", detail=FinishDetail(detail, 16), output_tokens=16)
    body = RESPONSES.to_response(answer, FACTS)
    assert body["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["output"][0]["status"] == "incomplete"
    assert body["usage"]["output_tokens"] == 16
    assert body["finish_detail"] == {"type": detail, "at": 16}
    last = stream(events_of(answer))[-1]
    assert (last["type"], last["response"]) == ("response.incomplete", as_json(body))


def test_a_whole_answer_is_completed() -> None:
    body = RESPONSES.to_response(answer_of("Hello", matched_stop="STOP"), FACTS)
    assert (body["status"], body["incomplete_details"], body["output"][0]["status"]) == ("completed", None, "completed")
    assert "finish_detail" not in body


def test_an_empty_answer_has_its_message() -> None:
    body = RESPONSES.to_response(answer_of(""), FACTS)
    assert [part["text"] for part in body["output"][0]["content"]] == [""]
    assert [event["type"] for event in stream(events_of(answer_of("")))].count("response.output_item.done") == 1


def test_the_object_repeats_the_request() -> None:
    asked = {
        "instructions": "Be brief.",
        "max_output_tokens": 64,
        "metadata": {"a": "b"},
        "previous_response_id": "resp_1",
        "store": False,
        "temperature": 0.5,
        "top_p": 0.9,
        "user": "u",
        "parallel_tool_calls": False,
        "truncation": "disabled",
    }
    body = RESPONSES.to_response(answer_of("hi"), facts(**asked))
    assert {name: body[name] for name in asked} == asked


def test_ids_are_made_of_the_request_id() -> None:
    body = RESPONSES.to_response(answer_of("hi"), FACTS)
    assert (body["id"], body["output"][0]["id"]) == (f"resp_{REQUEST_ID}", f"msg_{REQUEST_ID}")


def test_usage_adds_up() -> None:
    usage = RESPONSES.to_response(answer_of("hi", output_tokens=3, cached_tokens=2), FACTS)["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (7, 3, 10)
    assert usage["input_tokens_details"]["cached_tokens"] == 2


def test_logprobs_stand_with_the_text() -> None:
    body = RESPONSES.to_response(answer_of("hi", logprobs=(token("hi"),)), FACTS)
    entry = {"token": "hi", "logprob": -0.5, "bytes": [104, 105]}
    assert body["output"][0]["content"][0]["logprobs"] == [entry | {"top_logprobs": [entry]}]


@pytest.mark.parametrize("code", ["engine_failure", "unavailable"])
def test_a_broken_answer_ends_as_failed(code: Any) -> None:
    """B44: others closed the connection without a word, and clients waited."""
    said = stream([Begun(7), TextDelta(0, "Hel"), Broken(code, "it broke")])
    last = said[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"] == {"code": "server_error", "message": "it broke"}
    assert last["response"]["status"] == "failed"
    assert [item["content"][0]["text"] for item in last["response"]["output"]] == ["Hel"]
    read_by_sdk(said)


GOLDEN: dict[str, list[AnswerEvent]] = {
    "normal": events_of(answer_of("Hello 🌍!"), TextDelta(0, "Hello "), TextDelta(0, "🌍"), TextDelta(0, "!")),
    "length": events_of(answer_of("Hello", reason="length", detail=FinishDetail("request", 3))),
    "empty": events_of(answer_of("", output_tokens=1)),
    "broken": [Begun(7), TextDelta(0, "Hel"), Broken("engine_failure", "the engine failed")],
}


@pytest.mark.parametrize("name", GOLDEN)
def test_transcript(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"responses_{name}.sse", transcript(frames_of(RESPONSES, FACTS, GOLDEN[name])))
