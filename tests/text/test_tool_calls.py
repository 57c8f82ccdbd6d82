"""Tool-call parsers on recorded answers: what is content, what is a call, and that no cut changes it."""

import json
from typing import Any

import pytest

from plimsoll_runtime.text.tool_calls.formats import GRAMMARS, new_parser
from text.tool_call_corpus import CORPORA, Said, folded, pieces_of, said

CUTS = (1, 2, 3, 7, 10_000)
ANSWERS = [
    pytest.param(name, corpus["tools"], row, id=f"{name} {row['name']}")
    for name, corpus in CORPORA.items()
    for row in corpus["answers"]
]
MALFORMED = [
    pytest.param(name, corpus["tools"], text, id=f"{name} {text[:60]}")
    for name, corpus in CORPORA.items()
    for text in corpus["malformed"]
]


@pytest.mark.parametrize(("name", "tools", "row"), ANSWERS)
def test_an_answer_is_read_alike_however_it_is_cut(name: str, tools: dict[str, Any], row: Any) -> None:
    """B70, B71, B72, B78: streamed closing braces were lost, calls without parameters dropped, later ones leaked."""
    expected = Said(row["content"], row["calls"], row["calls"])
    for length in CUTS:
        assert said(name, pieces_of(row["text"], length), tools) == expected


@pytest.mark.parametrize(("name", "tools", "row"), ANSWERS)
def test_arguments_are_valid_json_objects(name: str, tools: dict[str, Any], row: Any) -> None:
    for _, arguments in said(name, [row["text"]], tools).calls:
        assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize(("name", "tools", "text"), MALFORMED)
def test_what_only_looks_like_a_call_is_content(name: str, tools: dict[str, Any], text: str) -> None:
    for length in CUTS:
        of_text = said(name, pieces_of(text, length), tools)
        assert (of_text.content, of_text.calls) == (text, [])


@pytest.mark.parametrize("name", GRAMMARS)
def test_every_format_has_a_corpus(name: str) -> None:
    assert len(CORPORA[name]["answers"]) >= 15
    assert len(CORPORA[name]["malformed"]) >= 8


@pytest.mark.parametrize(("name", "tools", "row"), ANSWERS)
def test_a_cut_answer_leaves_an_unfinished_call_out(name: str, tools: dict[str, Any], row: Any) -> None:
    """B73: a call cut by the limit was reported as finished, with repaired or emptied arguments."""
    text = row["text"]
    for end in range(len(text)):
        cut = said(name, [text[:end]], tools, was_cut=True)
        assert cut.calls == row["calls"][: len(cut.calls)]
        for begun, whole in zip(cut.begun, row["calls"], strict=False):
            assert begun[0] == whole[0]
            assert whole[1].startswith(begun[1])
        assert row["content"].startswith(cut.content) or cut.content.isspace()


@pytest.mark.parametrize(("name", "tools", "row"), ANSWERS)
def test_where_one_call_is_wanted_the_answer_is_over_with_it(name: str, tools: dict[str, Any], row: Any) -> None:
    """B80: `parallel_tool_calls: false` was dropped in silence."""
    parser = new_parser(name, tools, takes_one=True)  # type: ignore[arg-type]
    pieces = [piece for text in row["text"] for piece in parser.feed(text)]
    one = folded(pieces + parser.finish(was_cut=False))
    assert one.calls == row["calls"][:1]
    assert parser.is_over
    if row["calls"]:
        assert parser.feed("more") == []
