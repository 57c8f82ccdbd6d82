"""Recorded answers of models that call tools, per format, and what each of them says.

`fixtures/tool_calls/FORMAT.json` has `tools` (name -> schema of its parameters), `answers` (text, the content in it and
its calls as [name, arguments as written]), and `malformed` (texts that only look like calls).
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plimsoll_runtime.text.tool_calls.formats import GRAMMARS, new_parser
from plimsoll_runtime.text.tool_calls.pieces import CallArguments, CallBegun, CallEnded, Content, Piece

FOLDER = Path(__file__).parent.parent / "fixtures" / "tool_calls"
CORPORA: dict[str, dict[str, Any]] = {name: json.loads((FOLDER / f"{name}.json").read_text()) for name in GRAMMARS}


@dataclass(frozen=True)
class Said:
    """What the pieces of an answer come to. `begun` has every call that was begun, `calls` those that ended."""

    content: str
    calls: list[list[str]]
    begun: list[list[str]]


def folded(pieces: Iterable[Piece]) -> Said:
    """Put together as a client does it. Asserts that pieces of a call never stand outside of one."""
    content, calls, begun = "", [], []
    is_open = False
    for piece in pieces:
        match piece:
            case Content(text):
                assert text
                content, is_open = content + text, False
            case CallBegun(name):
                begun.append([name, ""])
                is_open = True
            case CallArguments(text):
                assert is_open
                assert text
                begun[-1][1] += text
            case CallEnded():
                assert is_open
                calls.append(begun[-1])
                is_open = False
    return Said(content, calls, begun)


def said(
    name: Any, cuts: Iterable[str], tools: dict[str, Any], *, was_cut: bool = False, takes_one: bool = False
) -> Said:
    """What a parser makes of an answer that comes in these pieces."""
    parser = new_parser(name, tools, takes_one=takes_one)
    pieces = [piece for text in cuts for piece in parser.feed(text)]
    return folded(pieces + parser.finish(was_cut=was_cut))


def pieces_of(text: str, length: int) -> list[str]:
    return [text[start : start + length] for start in range(0, len(text), length)]
