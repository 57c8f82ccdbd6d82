"""Tool-call parsers on recorded answers: what is content, what is a call, and that no cut changes it."""

import json
from typing import Any, get_args

import pytest
import tokenizers
from tokenizers import AddedToken, models, pre_tokenizers

from plimsoll_runtime.contract.config import CallFormat
from plimsoll_runtime.request import Tool, ToolUse
from plimsoll_runtime.text.detokenizer import Detokenizer
from plimsoll_runtime.text.special_tokens import SpecialTokens
from plimsoll_runtime.text.token_bytes import byte_alphabet, byte_level_bytes
from plimsoll_runtime.text.tokenizer import Tokenizer
from plimsoll_runtime.text.tool_calls.formats import GRAMMARS, ToolCallFormat, new_parser
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


def test_every_word_of_the_setting_has_its_grammar() -> None:
    assert {"none", *GRAMMARS} == set(get_args(CallFormat))


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
    parser = new_parser(name, tools, takes_one=True)
    pieces = [piece for text in row["text"] for piece in parser.feed(text)]
    one = folded(pieces + parser.finish(was_cut=False))
    assert one.calls == row["calls"][:1]
    assert parser.is_over
    if row["calls"]:
        assert parser.feed("more") == []


@pytest.mark.parametrize("is_control", [True, False])
def test_marks_that_are_control_tokens_are_read(is_control: bool) -> None:
    """B78: a parser waited for the id of a special token, and where the mark came as pieces the call leaked as text."""
    library = tokenizers.Tokenizer(models.BPE(vocab=byte_vocabulary(), merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if is_control:
        library.add_special_tokens([AddedToken("[TOOL_CALLS]", special=True), AddedToken("[ARGS]", special=True)])
    special = SpecialTokens(bos_id=None, eos_id=None, end_ids=frozenset(), adds_bos=False)
    tokenizer = Tokenizer(library, special, byte_level_bytes)
    reading = ToolCallFormat("mistral", tokenizer)
    assert len(reading.shown_ids) == (2 if is_control else 0)
    parser = reading.parser(ToolUse((Tool("f", None, {}),)))
    detokenizer = Detokenizer(tokenizer, reading.shown_ids)
    ids = tokenizer.encode('Hm.[TOOL_CALLS]f[ARGS]{"x": 1}', parse_special=True, add_special=False)
    assert len(ids) == (14 if is_control else 30)
    pieces = [piece for token_id in ids for piece in parser.feed(detokenizer.push(token_id))]
    assert folded(pieces + parser.finish(was_cut=False)) == Said("Hm.", [["f", '{"x": 1}']], [["f", '{"x": 1}']])


def byte_vocabulary() -> dict[str, int]:
    return {character: byte for byte, character in byte_alphabet().items()}
