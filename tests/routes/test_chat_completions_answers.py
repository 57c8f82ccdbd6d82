"""What a chat answer looks like, whole and streamed, and that both say the same."""

from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from plimsoll_runtime.contract.endpoints import CHAT_COMPLETIONS as PATH
from plimsoll_runtime.events import (
    AnswerEvent,
    Begun,
    Broken,
    ChoiceEnded,
    Ended,
    FinishDetail,
    FinishDetailType,
    TextDelta,
    Usage,
)
from plimsoll_runtime.routes.chat_completions import CHAT_COMPLETIONS
from plimsoll_runtime.routes.dialect import Answer, AnswerFacts
from routes.openai_answers import (
    Script,
    answer_of,
    choice_of,
    chunks_of,
    events_of,
    facts_of,
    frames_of,
    scripts,
    strict_json,
    token,
    transcript,
    whole_pieces,
)

HELLO = answer_of(choice_of("Hello", output_tokens=2))


def folded(chunks: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The choices that a client puts together from the chunks of a stream."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            delta, index = part.pop("delta"), part["index"]
            opening = {"role": delta.get("role"), "content": "", "refusal": delta.get("refusal", "absent")}
            choice = choices.setdefault(index, {"message": opening, "logprobs": None})
            choice["message"]["content"] += delta.get("content", "")
            logprobs = part.pop("logprobs")
            if logprobs is not None:
                whole = choice["logprobs"] or {"content": [], "refusal": None}
                choice["logprobs"] = whole | {"content": whole["content"] + logprobs["content"]}
            choice.update(part)
    return choices


def streamed(answer: Answer, facts: AnswerFacts) -> list[dict[str, Any]]:
    return chunks_of(frames_of(CHAT_COMPLETIONS, facts, events_of(answer, whole_pieces(answer), [])))


def test_a_plain_answer_has_every_field_of_the_reference() -> None:
    assert CHAT_COMPLETIONS.to_response(HELLO, facts_of(PATH)) == {
        "id": "chatcmpl-AAAABBBBCCCCDDDDEEEEFFFF",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "scripted",
        "system_fingerprint": "fp_scripted",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 2,
            "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 2},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


LIMITS: list[tuple[FinishDetail, dict[str, Any]]] = [
    *((FinishDetail(limit, 3), {"type": limit}) for limit in get_args(FinishDetailType) if limit != "repetition"),
    (FinishDetail("repetition", 3, period=2, copies=4), {"type": "repetition", "period": 2, "copies": 4}),
]


@pytest.mark.parametrize(("detail", "ended_by"), LIMITS)
def test_a_choice_ended_by_a_limit_says_by_which(detail: FinishDetail, ended_by: dict[str, Any]) -> None:
    answer = answer_of(choice_of("He", reason="length", detail=detail))
    facts = facts_of(PATH)
    last = streamed(answer, facts)[-1]["choices"][0]
    whole = CHAT_COMPLETIONS.to_response(answer, facts)["choices"][0]
    assert last["delta"] == {}
    for choice in (last, whole):
        assert (choice["finish_reason"], choice["finish_detail"]) == ("length", {**ended_by, "at": 3})


def test_the_stop_string_that_matched_is_named() -> None:
    answer = answer_of(choice_of("A B ", matched_stop="STOP"))
    facts = facts_of(PATH)
    for choice in (
        CHAT_COMPLETIONS.to_response(answer, facts)["choices"][0],
        streamed(answer, facts)[-1]["choices"][0],
    ):
        assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", "STOP")
        assert "finish_detail" not in choice


def test_logprobs_are_exact() -> None:
    """B34: half a character became U+FFFD, so clients could not tell two tokens apart."""
    tokens = (
        token(b"\xf0\x9f", -0.25, ((b"\xf0\x9f", -0.25), (b"ok", -9999.0))),
        token(b"\x8c\x8d", -9999.0),
    )
    answer = answer_of(choice_of("🌍", logprobs=tokens))
    facts = facts_of(PATH, logprobs=True)
    logprobs = CHAT_COMPLETIONS.to_response(answer, facts)["choices"][0]["logprobs"]
    strict_json(logprobs)
    half = {"token": "\\xf0\\x9f", "logprob": -0.25, "bytes": [0xF0, 0x9F]}
    impossible = {"token": "ok", "logprob": -9999.0, "bytes": [111, 107]}
    assert logprobs["refusal"] is None
    assert logprobs["content"][0] == {**half, "top_logprobs": [half, impossible]}
    assert logprobs["content"][1]["logprob"] == -9999.0


@pytest.mark.parametrize(("asked", "expected"), [(True, []), (False, None), (None, None)])
def test_logprobs_are_there_only_where_asked_for(asked: bool | None, expected: Any) -> None:
    logprobs = CHAT_COMPLETIONS.to_response(HELLO, facts_of(PATH, logprobs=asked))["choices"][0]["logprobs"]
    assert (logprobs["content"] if logprobs else logprobs) == expected


@pytest.mark.parametrize(("include_usage", "num_chunks"), [(False, 3), (True, 4)])
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_usage_is_one_more_chunk_only_where_asked_for(include_usage: bool, num_chunks: int, reason: Any) -> None:
    """B43: the usage chunk was missing, sent unasked, or merged into the last content chunk."""
    answer = answer_of(choice_of("Hello", reason=reason))
    facts = facts_of(PATH, include_usage=include_usage)
    frames = frames_of(CHAT_COMPLETIONS, facts, events_of(answer, whole_pieces(answer), []))
    chunks = chunks_of(frames)
    assert frames[-1].data == "[DONE]"
    assert len(chunks) == num_chunks
    assert all(("usage" in chunk) == include_usage for chunk in chunks)
    if include_usage:
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"] == CHAT_COMPLETIONS.to_response(answer, facts)["usage"]
        assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_every_choice_opens_in_order_before_any_speaks() -> None:
    """The official client files choices by arrival: a choice 1 that came first was taken for choice 0."""
    answer = answer_of(choice_of("a"), choice_of("b", index=1), choice_of("c", index=2))
    facts = facts_of(PATH, num_choices=3)
    frames = frames_of(CHAT_COMPLETIONS, facts, events_of(answer, whole_pieces(answer), [2, 2, 1, 0]))
    assert [chunk["choices"][0]["index"] for chunk in chunks_of(frames)] == [0, 1, 2, 2, 2, 1, 0, 0, 1]
    assert _state_of(chunks_of(frames)).choices[2].message.content == "c"


@pytest.mark.parametrize("code", ["engine_failure", "unavailable"])
def test_a_broken_stream_ends_with_an_error_and_no_done(code: Any) -> None:
    """B44: the socket was closed with no error. One error object, then nothing that says the answer is whole."""
    events: list[AnswerEvent] = [Begun(7), TextDelta(0, "He"), Broken(code, "the engine stopped")]
    frames = frames_of(CHAT_COMPLETIONS, facts_of(PATH), events)
    assert chunks_of(frames)[-1] == {
        "error": {"message": "the engine stopped", "type": "server_error", "param": None, "code": code}
    }
    assert all(frame.data != "[DONE]" for frame in frames)
    assert all(choice["finish_reason"] is None for chunk in chunks_of(frames)[:-1] for choice in chunk["choices"])


def test_every_frame_is_one_line_of_ascii() -> None:
    """B57: clients that split at every Unicode line break cut an event in two at U+2028."""
    answer = answer_of(choice_of("a\u2028b\x85🌍\n"))
    frames = frames_of(CHAT_COMPLETIONS, facts_of(PATH), events_of(answer, whole_pieces(answer), []))
    assert all(frame.data.isascii() and len(frame.data.splitlines()) == 1 for frame in frames)
    assert folded(chunks_of(frames))[0]["message"]["content"] == "a\u2028b\x85🌍\n"


@pytest.mark.parametrize("with_logprobs", [False, True])
def test_stream_and_plain_answer_agree(with_logprobs: bool) -> None:
    """B49: the streamed answer differed from the plain one for the same output."""

    @given(scripts(with_logprobs=with_logprobs))
    def agree(script: Script) -> None:
        facts = facts_of(
            PATH, num_choices=len(script.answer.choices), logprobs=with_logprobs or None, include_usage=True
        )
        plain = CHAT_COMPLETIONS.to_response(script.answer, facts)
        chunks = chunks_of(frames_of(CHAT_COMPLETIONS, facts, script.events))
        assert chunks[-1]["usage"] == plain["usage"]
        for name in ("id", "created", "model", "system_fingerprint"):
            assert {chunk[name] for chunk in chunks} == {plain[name]}
        state = _state_of(chunks)
        choices = folded(chunks)
        for choice in plain["choices"]:
            accumulated = state.choices[choice["index"]]
            assert accumulated.message.content == choice["message"]["content"]
            assert accumulated.finish_reason == choice["finish_reason"]
            if with_logprobs and not choice["logprobs"]["content"]:
                choice["logprobs"] = None
            assert choices[choice["index"]] == choice

    agree()


def test_answers_fit_the_official_models() -> None:
    answer = answer_of(choice_of("🌍", logprobs=(token(b"\xf0\x9f"), token(b"\x8c\x8d"))))
    facts = facts_of(PATH, logprobs=True)
    ChatCompletion.model_validate(CHAT_COMPLETIONS.to_response(answer, facts), strict=True)
    for chunk in streamed(answer, facts):
        ChatCompletionChunk.model_validate(chunk, strict=True)


def test_golden_transcript(golden: Callable[[str, str], None]) -> None:
    events: list[AnswerEvent] = [
        Begun(7),
        TextDelta(0, "Hi"),
        TextDelta(1, "Hé"),
        TextDelta(0, "", ()),
        ChoiceEnded(1, "length", FinishDetail("limit", 3), None, 2),
        TextDelta(0, " 🌍"),
        ChoiceEnded(0, "stop", None, "END", 3),
        Ended(Usage(7, 5, 4)),
    ]
    facts = facts_of(PATH, num_choices=2, include_usage=True)
    golden("chat_two_choices.sse", transcript(frames_of(CHAT_COMPLETIONS, facts, events)))
    broken: list[AnswerEvent] = [Begun(7), TextDelta(0, "Hi"), Broken("unavailable", "the server is stopping")]
    golden("chat_broken.sse", transcript(frames_of(CHAT_COMPLETIONS, facts_of(PATH), broken)))


def _state_of(chunks: list[dict[str, Any]]) -> ChatCompletion:
    """What the official client accumulates; its final call refuses an answer cut by the limit, on purpose."""
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for chunk in chunks:
        list(state.handle_chunk(ChatCompletionChunk.model_validate(chunk)))
    return state.current_completion_snapshot
