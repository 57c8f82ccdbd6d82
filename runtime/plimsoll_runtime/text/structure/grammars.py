"""From the form that a request asks for to a grammar of llguidance.

Owns the limits on size and depth, and how JSON may be laid out. In: a `Structure`. Out: a grammar as text, or a
StructureError. It compiles nothing: whether the grammar means anything is found out by trial.py. JSON may have white
space wherever JSON has it, but only so much in one place: a model that likes line ends would write them for ever.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, assert_never

from llguidance import LLMatcher

from plimsoll_runtime.request import Structure
from plimsoll_runtime.text.structure.errors import StructureError

MAX_BYTES: Final = 65_536
MAX_DEPTH: Final = 64
"""Lists and objects in one another, in a schema."""
_WHITE_SPACE: Final = r"[\x20\x0A\x0D\x09]{1,24}"
_LIBRARY_OPTIONS: Final = "x-guidance"
"""A key of a schema that the library would read as settings of its own."""


def grammar_of(structure: Structure) -> str:
    """Raises StructureError for a form that is too large or too deep, or that is none."""
    source = structure.source
    match structure.kind:
        case "json_schema":
            return LLMatcher.grammar_from_json_schema(schema_text(source, structure.is_strict))
        case "regex":
            check_size(source)
            return LLMatcher.grammar_from_regex(source)
        case "grammar":
            check_size(source)
            return LLMatcher.grammar_from_lark(source)
        case "choice":
            return LLMatcher.grammar_from_lark(_one_of(source))
        case _:
            assert_never(structure.kind)


def schema_text(schema: Mapping[str, Any] | bool, is_strict: bool) -> str:
    """The schema as the library reads it. Not strict: what cannot be enforced is left out, instead of refused."""
    if _is_deeper(schema, MAX_DEPTH):
        raise StructureError(f"it is nested deeper than {MAX_DEPTH} levels: use $defs and $ref, or fewer levels")
    text = json.dumps(schema)
    check_size(text)
    if isinstance(schema, bool):
        return text
    options = {"whitespace_pattern": _WHITE_SPACE, "lenient": not is_strict}
    return json.dumps({**schema, _LIBRARY_OPTIONS: options})


def check_size(text: str) -> None:
    num_bytes = len(text.encode())
    if num_bytes > MAX_BYTES:
        raise StructureError(f"it has {num_bytes:,} bytes: at most {MAX_BYTES:,}, so make it smaller")


def _one_of(texts: Sequence[str]) -> str:
    """A grammar whose answers are these texts."""
    grammar = "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
    check_size(grammar)
    return grammar


def _is_deeper(value: Any, levels: int) -> bool:
    """Level by level, without a stack."""
    level = [value]
    for _ in range(levels):
        parts = (part for whole in level if isinstance(whole, dict | list) for part in _parts(whole))
        level = [part for part in parts if isinstance(part, dict | list)]
        if not level:
            return False
    return True


def _parts(whole: Mapping[str, Any] | Sequence[Any]) -> Any:
    return whole.values() if isinstance(whole, Mapping) else whole
