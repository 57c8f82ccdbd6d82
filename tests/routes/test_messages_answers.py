"""Answers of `/v1/messages`: the message object, the order of events, and that both say the same."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

from plimsoll_runtime.events import AnswerEvent, Begun, Broken, FinishDetail, FinishDetailType, FinishReason, TextDelta
from plimsoll_runtime.request import GenerationRequest
from plimsoll_runtime.routes.dialect import Answer
from plimsoll_runtime.routes.messages import MESSAGES
from plimsoll_runtime.routes.messages_answer import PING
from routes.one_choice import answer_of, as_json, cut_answers, data_of, events_of, facts_of, frames_of, transcript

FACTS = facts_of(GenerationRequest(route="/v1/messages", model="scripted", prompt_param="messages", prompts=()))


def stream(events: list[AnswerEvent]) -> list[dict[str, Any]]:
    return data_of(frames_of(MESSAGES, FACTS, events))


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def accumulated(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client has after a stream, made by the rules of the API's own reference."""
    message: dict[str, Any] = {}
    for event in events:
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
            case "content_block_delta":
                message["content"][event["index"]]["text"] += event["delta"]["text"]
            case "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
                message |= {name: event[name] for name in ("finish_detail",) if name in event}
    return message


@given(cut_answers())
def test_the_stream_says_what_the_plain_answer_says(case: tuple[Answer, list[AnswerEvent]]) -> None:
    """B49, and B57: each event is JSON on its own. Streams of others differed from the plain answer."""
    answer, events = case
    assert accumulated(stream(events)) == as_json(MESSAGES.to_response(answer, FACTS))


@given(cut_answers())
def test_the_order_of_events(case: tuple[Answer, list[AnswerEvent]]) -> None:
    """B48: others opened with an empty block, or sent a delta before its block."""
    answer, events = case
    said = kinds(stream(events))
    num_deltas = said.count("content_block_delta")
    block = ["content_block_start", *["content_block_delta"] * num_deltas, "content_block_stop"]
    assert said == [
        "message_start",
        "ping",
        *(block if answer.choices[0].text else []),
        "message_delta",
        "message_stop",
    ]


@pytest.mark.parametrize(
    ("reason", "detail", "matched_stop", "expected"),
    [
        pytest.param("stop", None, None, "end_turn", id="end of text"),
        pytest.param("stop", None, "STOP", "stop_sequence", id="B54 stop string"),
        pytest.param("length", "request", None, "max_tokens", id="B02 request"),
        pytest.param("length", "default", None, "max_tokens", id="default"),
        pytest.param("length", "limit", None, "max_tokens", id="limit"),
        pytest.param("length", "deadline", None, "max_tokens", id="deadline"),
        pytest.param("length", "context", None, "model_context_window_exceeded", id="context"),
    ],
)
def test_why_it_ended(
    reason: FinishReason, detail: FinishDetailType | None, matched_stop: str | None, expected: str
) -> None:
    """Others reported a stop string that matched as `end_turn`, and left `stop_sequence` out."""
    ended_by = None if detail is None else FinishDetail(detail, 3)
    answer = answer_of("A B ", reason=reason, detail=ended_by, matched_stop=matched_stop)
    delta = next(event for event in stream(events_of(answer)) if event["type"] == "message_delta")
    assert delta["delta"]["stop_reason"] == expected
    assert delta["delta"]["stop_sequence"] == matched_stop
    assert delta.get("finish_detail") == (None if detail is None else {"type": detail, "at": 3})
    assert MESSAGES.to_response(answer, FACTS)["content"] == [{"type": "text", "text": "A B ", "citations": None}]


def test_an_empty_text_has_no_block() -> None:
    assert MESSAGES.to_response(answer_of(""), FACTS)["content"] == []


def test_usage_counts_cached_tokens_apart() -> None:
    usage = MESSAGES.to_response(answer_of("hi", output_tokens=3, cached_tokens=2), FACTS)["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (5, 2, 3)


def test_the_stream_starts_with_the_real_prompt_tokens() -> None:
    """B48: others said 0."""
    start = stream([Begun(7)])[0]["message"]
    assert (start["usage"]["input_tokens"], start["stop_reason"], start["content"]) == (7, None, [])


@pytest.mark.parametrize(("code", "error_type"), [("engine_failure", "api_error"), ("unavailable", "overloaded_error")])
def test_a_broken_answer_ends_with_an_error_event(code: Any, error_type: str) -> None:
    """B44: others closed the connection without a word, and clients waited."""
    events = stream([Begun(7), TextDelta(0, "A"), Broken(code, "it broke")])
    assert kinds(events)[-2:] == ["content_block_delta", "error"]
    assert events[-1]["error"] == {"type": error_type, "message": "it broke"}


def test_the_ping_is_a_frame_of_this_api() -> None:
    assert (PING.event, PING.data) == ("ping", '{"type":"ping"}')


GOLDEN: dict[str, list[AnswerEvent]] = {
    "normal": events_of(answer_of("Hello 🌍!"), TextDelta(0, "Hello "), TextDelta(0, "🌍"), TextDelta(0, "!")),
    "length": events_of(answer_of("Hello", reason="length", detail=FinishDetail("request", 3))),
    "context": events_of(answer_of("Hello", reason="length", detail=FinishDetail("context", 3))),
    "stop": events_of(answer_of("A B ", matched_stop="STOP")),
    "empty": events_of(answer_of("", output_tokens=1)),
    "broken": [Begun(7), TextDelta(0, "Hel"), Broken("engine_failure", "the engine failed")],
}


@pytest.mark.parametrize("name", GOLDEN)
def test_transcript(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"messages_{name}.sse", transcript(frames_of(MESSAGES, FACTS, GOLDEN[name])))
