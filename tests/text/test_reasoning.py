"""Reasoning parsers on recorded answers: what is reasoning, what is the answer, and that no cut changes it."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles.server import Vocabulary
from plimsoll_runtime.contract.config import ReasoningTags
from plimsoll_runtime.text.reasoning import FORMATS, ReasoningFormat, ReasoningSplitter
from text.tool_call_corpus import pieces_of

ROWS = json.loads((Path(__file__).parent.parent / "fixtures" / "reasoning" / "answers.json").read_text())
CUTS = (1, 2, 3, 7, 10_000)
PIECES = ("<think>", "</think>", "<", "</", "think>", "<th", "\n", " ", "a", "🤔")


def splitter(row: dict[str, Any], arguments: dict[str, Any] | None = None) -> ReasoningSplitter:
    """As the server makes it after the row's prompt."""
    tokenizer = Vocabulary().tokenizer()
    prompt_ids = tokenizer.encode(row.get("prompt", "hello"), parse_special=True, add_special=False)
    return ReasoningFormat(row.get("format", "qwen3"), tokenizer).splitter(prompt_ids, arguments or {})


def split(splitter: ReasoningSplitter, cuts: Iterable[str]) -> tuple[str | None, str]:
    """Reasoning and answer, put together as a client does it; None where there is no reasoning."""
    parts = [part for text in cuts for part in splitter.feed(text)] + list(splitter.finish())
    assert all(part.text for part in parts)
    reasoning = [part.text for part in parts if part.kind == "reasoning"]
    return ("".join(reasoning) if reasoning else None), "".join(part.text for part in parts if part.kind == "answer")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_an_answer_is_split_alike_however_it_is_cut(row: dict[str, Any]) -> None:
    for length in CUTS:
        assert split(splitter(row), pieces_of(row["text"], length)) == (row["reasoning"], row["answer"])


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.booleans(), st.data())
def test_no_cut_of_any_text_changes_it_and_nothing_is_lost(
    pieces: list[str], is_open: bool, data: st.DataObject
) -> None:
    """What is left out is tags that were read as such, and line ends beside them."""
    text = "".join(pieces)
    cuts: list[str] = []
    rest = text
    while rest:
        length = data.draw(st.integers(1, len(rest)))
        cuts.append(rest[:length])
        rest = rest[length:]
    tags = FORMATS["think"]
    whole = split(ReasoningSplitter(tags, is_open=is_open), [text])
    assert split(ReasoningSplitter(tags, is_open=is_open), cuts) == whole
    kept = (whole[0] or "") + whole[1]
    assert kept.count("🤔") == text.count("🤔")
    assert kept.count("a") == text.count("a")


@pytest.mark.parametrize("name", ["enable_thinking", "thinking"])
def test_what_is_assumed_to_think_does_not_where_it_was_told_so(name: str) -> None:
    """B83: with thinking switched off the answer landed in the reasoning field and content was empty."""
    row = {"format": "deepseek_r1"}
    assert split(splitter(row, {name: False}), ["Hi there"]) == (None, "Hi there")
    assert split(splitter(row, {name: True}), ["Hi there"]) == ("Hi there", "")


def test_text_that_continues_a_text_is_not_assumed_to_think() -> None:
    reading = ReasoningFormat("deepseek_r1", Vocabulary().tokenizer())
    assert split(reading.splitter([104, 105], None), ["Hi there"]) == (None, "Hi there")


def test_every_word_of_the_setting_has_its_format() -> None:
    assert {"none", *FORMATS} == set(get_args(ReasoningTags))
