"""Answers with tool calls, as the three dialects with tools write them: transcripts, and official models read them."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from anthropic.types import RawMessageStreamEvent
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from plimsoll_runtime.contract import endpoints
from plimsoll_runtime.events import (
    AnswerEvent,
    Begun,
    Broken,
    CallArguments,
    CallBegun,
    CallEnded,
    ChoiceEnded,
    Ended,
    FinishDetail,
    TextDelta,
    Usage,
)
from plimsoll_runtime.request import GenerationRequest
from plimsoll_runtime.routes.answer import AnswerFold
from plimsoll_runtime.routes.app import DIALECTS
from plimsoll_runtime.routes.dialect import Answer, AnswerFacts
from plimsoll_runtime.routes.json_body import body_text
from plimsoll_runtime.routes.messages_answer import PING
from routes.four_routes import ASK
from routes.one_choice import data_of, facts_of, frames_of, transcript
from routes.tool_dialects import TOOL_DIALECTS

FIRST: list[AnswerEvent] = [
    Begun(7),
    TextDelta(0, "Hm. "),
    CallBegun(0, 0, "a" * 24, "f"),
    CallArguments(0, 0, '{"x": '),
    CallArguments(0, 0, "1e400}"),
    CallEnded(0, 0),
]
SECOND: list[AnswerEvent] = [CallBegun(0, 1, "b" * 24, "g"), CallArguments(0, 1, '{"é": ')]
USAGE = Usage(7, 9, 2)
SCENES: dict[str, list[AnswerEvent]] = {
    "two": [
        *FIRST,
        *SECOND,
        CallArguments(0, 1, "[]}"),
        CallEnded(0, 1),
        ChoiceEnded(0, "tool_calls", None, None, 9),
        Ended(USAGE),
    ],
    "cut": [*FIRST, *SECOND, ChoiceEnded(0, "length", FinishDetail("request", 9), None, 9), Ended(USAGE)],
    "wrong": [
        Begun(7),
        *SECOND,
        TextDelta(0, '<tool_call>{"name"...'),
        ChoiceEnded(0, "stop", None, None, 9),
        Ended(USAGE),
    ],
    "broken": [*FIRST, *SECOND, Broken("engine_failure", "the engine failed")],
}
ADAPTERS: dict[str, TypeAdapter[Any]] = {
    endpoints.CHAT_COMPLETIONS: TypeAdapter(ChatCompletionChunk),
    endpoints.MESSAGES: TypeAdapter(RawMessageStreamEvent),
    endpoints.RESPONSES: TypeAdapter(ResponseStreamEvent),
}
NAMES = {endpoints.CHAT_COMPLETIONS: "chat", endpoints.MESSAGES: "messages", endpoints.RESPONSES: "responses"}


def facts(route: str) -> AnswerFacts:
    tools = TOOL_DIALECTS[route].tools({"f": {}, "g": {}})
    request = DIALECTS[route].to_request({"model": "scripted", **ASK[route].body("hi"), "tools": tools}, {})
    assert isinstance(request, GenerationRequest), request
    return facts_of(request)


def folded(events: list[AnswerEvent]) -> Answer:
    fold = AnswerFold()
    answers = [fold.add(event) for event in events]
    assert isinstance(answers[-1], Answer)
    return answers[-1]


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("route", TOOL_DIALECTS, ids=NAMES.get)
def test_transcript(route: str, scene: str, golden: Callable[[str, str], None]) -> None:
    golden(f"{NAMES[route]}_calls_{scene}.sse", transcript(frames_of(DIALECTS[route], facts(route), SCENES[scene])))


@pytest.mark.parametrize("scene", ["two", "cut", "wrong"])
@pytest.mark.parametrize("route", TOOL_DIALECTS, ids=NAMES.get)
def test_the_official_models_read_every_event(route: str, scene: str) -> None:
    frames = [
        frame
        for frame in frames_of(DIALECTS[route], facts(route), SCENES[scene])
        if frame.data != "[DONE]" and frame != PING
    ]
    for frame in frames:
        ADAPTERS[route].validate_python(json.loads(frame.data))


@pytest.mark.parametrize("scene", ["two", "cut", "wrong"])
def test_the_last_event_of_responses_is_the_plain_answer(scene: str) -> None:
    """B13, B73: the item of a call that was cut is done as incomplete, and no part of the answer."""
    route = endpoints.RESPONSES
    said = data_of(frames_of(DIALECTS[route], facts(route), SCENES[scene]))
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=[], text_format=omit)
    for event in said:
        state.handle_event(ADAPTERS[route].validate_python(event))
    assert said[-1]["response"] == DIALECTS[route].to_response(folded(SCENES[scene]), facts(route))
    assert [event["sequence_number"] for event in said] == list(range(len(said)))
    done = [event["item"] for event in said if event["type"] == "response.output_item.done"]
    cut = [item["name"] for item in done if item["type"] == "function_call" and item["status"] == "incomplete"]
    assert cut == ([] if scene == "two" else ["g"])


def test_blocks_of_messages_are_opened_and_closed_in_turn() -> None:
    said = data_of(frames_of(DIALECTS[endpoints.MESSAGES], facts(endpoints.MESSAGES), SCENES["two"]))
    places = [(event["type"].rpartition("_")[2], event["index"]) for event in said if "index" in event]
    moves = [place for place in places if place[0] != "delta"]
    assert moves == [("start", 0), ("stop", 0), ("start", 1), ("stop", 1), ("start", 2), ("stop", 2)]


def test_a_plain_answer_without_text_has_no_content_on_chat() -> None:
    calls_alone: list[AnswerEvent] = [event for event in SCENES["two"] if not isinstance(event, TextDelta)]
    route = endpoints.CHAT_COMPLETIONS
    message = DIALECTS[route].to_response(folded(calls_alone), facts(route))["choices"][0]["message"]
    assert message["content"] is None
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == ['{"x": 1e400}', '{"é": []}']


def test_raw_parts_stand_in_a_body_as_they_are() -> None:
    route = endpoints.MESSAGES
    body = body_text(DIALECTS[route].to_response(folded(SCENES["two"]), facts(route)))
    assert '"name":"f","input":{"x": 1e400}}' in body
    assert '"name":"g","input":{"é": []}}' in body
