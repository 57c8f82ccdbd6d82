"""What a completions answer looks like, whole and streamed, and that both say the same."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from openai.types import Completion

from plimsoll_runtime.contract.endpoints import COMPLETIONS as PATH
from plimsoll_runtime.events import AnswerEvent, Begun, Broken, ChoiceEnded, Echo, Ended, FinishDetail, TextDelta, Usage
from plimsoll_runtime.routes.completions import COMPLETIONS
from plimsoll_runtime.routes.dialect import Answer, AnswerFacts, ChoiceAnswer
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


def folded(chunks: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The choices that a client puts together from the chunks of a stream."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            choice = choices.setdefault(part["index"], {"text": "", "logprobs": None})
            text = choice["text"] + part.pop("text")
            arrays, more = choice["logprobs"], part.pop("logprobs")
            if arrays and more:
                more = {name: values + more[name] for name, values in arrays.items()}
            choice.update(part, text=text, logprobs=more or arrays)
    return choices


def streamed(answer: Answer, facts: AnswerFacts) -> list[dict[str, Any]]:
    return chunks_of(frames_of(COMPLETIONS, facts, events_of(answer, whole_pieces(answer), [])))


def test_a_plain_answer_has_every_field_of_the_reference() -> None:
    answer = answer_of(
        choice_of("A", reason="length", detail=FinishDetail("context", 3)), choice_of("B", index=1, matched_stop=".")
    )
    assert COMPLETIONS.to_response(answer, facts_of(PATH)) == {
        "id": "cmpl-AAAABBBBCCCCDDDDEEEEFFFF",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": "scripted",
        "system_fingerprint": "fp_scripted",
        "choices": [
            {
                "index": 0,
                "text": "A",
                "logprobs": None,
                "finish_reason": "length",
                "finish_detail": {"type": "context", "at": 3},
            },
            {"index": 1, "text": "B", "logprobs": None, "finish_reason": "stop", "matched_stop": "."},
        ],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 6,
            "total_tokens": 13,
            "prompt_tokens_details": {"cached_tokens": 2},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


ECHOED = replace(
    choice_of(" C", logprobs=(token(b" C", -0.5, ((b" D", -0.25),)),)),
    echo_text="A B",
    echo_logprobs=(None, token(b"A", -1.5, ((b"A", -1.5),)), token(b" B", -9999.0)),
    echo_token_texts=("<s>", "A", " B"),
)


def test_echo_covers_prompt_and_answer() -> None:
    """B35: `echo` with `logprobs` gave the generated tokens alone, so scores were silently 0."""
    choice = COMPLETIONS.to_response(answer_of(ECHOED), facts_of(PATH, logprobs=1))["choices"][0]
    strict_json(choice)
    assert choice["text"] == "A B C"
    assert choice["logprobs"] == {
        "tokens": ["<s>", "A", " B", " C"],
        "token_logprobs": [None, -1.5, -9999.0, -0.5],
        "top_logprobs": [None, {"A": -1.5}, {" B": -9999.0}, {" D": -0.25, " C": -0.5}],
        "text_offset": [0, 0, 1, 3],
    }


OFFSETS: list[Any] = [
    pytest.param("A B", [b"A", b" B"], [0, 1], id="plain"),
    pytest.param("A B", [b" A", b" B"], [0, 1], id="space-that-only-the-tokenizer-sees"),
    pytest.param("é🌍!", ["é".encode(), b"\xf0\x9f", b"\x8c\x8d", b"!"], [0, 1, 1, 2], id="B57-inside-a-character"),
    pytest.param("a\n", [b"<s>", b"a", b"<sep>", b"\n"], [0, 0, 1, 1], id="tokens-not-in-the-text"),
    pytest.param("a\ufffdb", [b"a", b"\xff", b"b"], [0, 1, 1], id="bytes-that-are-no-character"),
]


@pytest.mark.parametrize(("text", "tokens", "offsets"), OFFSETS)
def test_offsets_count_characters_of_the_echoed_text(text: str, tokens: list[bytes], offsets: list[int]) -> None:
    entries = [token(data) for data in tokens]
    choice = replace(
        choice_of("x", logprobs=(token(b"x"),)),
        echo_text=text,
        echo_logprobs=(None, *entries[1:]),
        echo_token_texts=tuple(entry.text for entry in entries),
    )
    whole = COMPLETIONS.to_response(answer_of(choice), facts_of(PATH, logprobs=0))["choices"][0]
    assert whole["logprobs"]["text_offset"] == [*offsets, len(text)]


def test_parts_of_a_character_keep_their_names_apart() -> None:
    """Two different halves of characters were both U+FFFD, and one hid the other in `top_logprobs`."""
    tokens = (token(b"\xf0\x9f", -0.5, ((b"\xe4\xbd", -0.25), (b"\xf0\x9f", -0.5))),)
    logprobs = COMPLETIONS.to_response(answer_of(choice_of("", logprobs=tokens)), facts_of(PATH, logprobs=2))
    arrays = logprobs["choices"][0]["logprobs"]
    assert arrays["tokens"] == ["bytes:\\xf0\\x9f"]
    assert arrays["top_logprobs"] == [{"bytes:\\xe4\\xbd": -0.25, "bytes:\\xf0\\x9f": -0.5}]


@pytest.mark.parametrize("include_usage", [False, True])
def test_usage_is_one_more_chunk_only_where_asked_for(include_usage: bool) -> None:
    """B43, on this route."""
    answer = answer_of(choice_of("Hello"))
    facts = facts_of(PATH, include_usage=include_usage)
    frames = frames_of(COMPLETIONS, facts, events_of(answer, whole_pieces(answer), []))
    assert frames[-1].data == "[DONE]"
    chunks = chunks_of(frames)
    if include_usage:
        last = chunks.pop()
        assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 3)
    assert len(chunks) == 2
    assert all(chunk.get("usage", "absent") == (None if include_usage else "absent") for chunk in chunks)


def test_a_broken_stream_ends_with_an_error_and_no_done() -> None:
    """B44, on this route."""
    frames = frames_of(COMPLETIONS, facts_of(PATH), [Begun(7), TextDelta(0, "He"), Broken("engine_failure", "why")])
    assert chunks_of(frames)[-1]["error"]["code"] == "engine_failure"
    assert all(frame.data != "[DONE]" for frame in frames)


@pytest.mark.parametrize("with_logprobs", [False, True])
@pytest.mark.parametrize("with_echo", [False, True])
def test_stream_and_plain_answer_agree(with_logprobs: bool, with_echo: bool) -> None:
    """B49, and B35 with a stream."""

    @given(scripts(with_logprobs=with_logprobs, with_echo=with_echo))
    def agree(script: Script) -> None:
        facts = facts_of(PATH, logprobs=2 if with_logprobs else None, include_usage=True, echo=with_echo)
        plain = COMPLETIONS.to_response(script.answer, facts)
        chunks = chunks_of(frames_of(COMPLETIONS, facts, script.events))
        choices = folded(chunks)
        assert chunks[-1]["usage"] == plain["usage"]
        for choice in plain["choices"]:
            if with_logprobs and not choice["logprobs"]["tokens"]:
                choice["logprobs"] = None
            assert choices[choice["index"]] == choice

    agree()


@given(scripts(with_logprobs=True))
def test_offsets_point_at_the_characters_of_the_text(script: Script) -> None:
    facts = facts_of(PATH, logprobs=1)
    for choice in COMPLETIONS.to_response(script.answer, facts)["choices"]:
        for piece, offset in zip(choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"], strict=True):
            assert piece.startswith("bytes:") or choice["text"].startswith(piece, offset)


def test_answers_fit_the_official_models() -> None:
    answer = answer_of(choice_of("hi", logprobs=(token(b"h"), token(b"i"))))
    facts = facts_of(PATH, logprobs=1)
    Completion.model_validate(COMPLETIONS.to_response(answer, facts), strict=True)


def test_golden_transcript(golden: Callable[[str, str], None]) -> None:
    def echo(index: int, choice: ChoiceAnswer) -> Echo:
        return Echo(index, choice.echo_text, choice.echo_logprobs, choice.echo_token_texts)

    events: list[AnswerEvent] = [
        Begun(14),
        echo(0, ECHOED),
        echo(1, ECHOED),
        TextDelta(1, " C", ECHOED.logprobs),
        TextDelta(0, " C", ECHOED.logprobs),
        ChoiceEnded(0, "length", FinishDetail("request", 3), None, 1),
        ChoiceEnded(1, "stop", None, None, 1),
        Ended(Usage(14, 2, 0)),
    ]
    facts = facts_of(PATH, logprobs=1, include_usage=True, echo=True)
    golden("completions_echo.sse", transcript(frames_of(COMPLETIONS, facts, events)))
