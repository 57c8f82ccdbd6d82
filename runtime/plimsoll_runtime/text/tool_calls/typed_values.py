"""What a value means that a model wrote as bare text, by the schema of its parameter.

Owns the rule: a string stays the text it is; where the schema has other types, text that is JSON of one of them is
that value as written; all else is a string, so that arguments are always valid JSON. In: the JSON schema of a tool's
parameters. Out: JSON text. Types are gathered through `anyOf`, `oneOf`, `allOf`, `enum`, `const` and local `$ref`s.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from plimsoll_runtime.text.tool_calls.json_text import whole_value
from plimsoll_runtime.text.tool_calls.reader import MalformedError

STRING: Final = frozenset({"string"})
ANYTHING: Final = frozenset({"string", "number", "boolean", "null", "array", "object"})
_MAX_NESTING: Final = 16
"""Schemas inside schemas that are looked through: one that refers to itself ends here."""
_LITERALS: Final = {"true": "boolean", "false": "boolean", "null": "null"}
_FIRST: Final = {"{": "object", "[": "array", '"': "string"}


def parameter_types(parameters: Mapping[str, Any], name: str) -> frozenset[str]:
    """Names of JSON schema types. A parameter that is not described is text; one described without a type is any."""
    properties = parameters.get("properties")
    schema = properties.get(name) if isinstance(properties, Mapping) else None
    if schema is None:
        return STRING
    return frozenset(_types(schema, parameters, 0)) or ANYTHING


def json_value(text: str, types: frozenset[str]) -> str:
    """`text` as JSON of one of the types, or as a string."""
    bare = text.strip()
    value = _LITERALS_OF_PYTHON.get(bare, bare)
    kind = _kind(value)
    if kind in types or (kind == "number" and "integer" in types and _is_whole(value)):
        return value
    return json.dumps(text, ensure_ascii=False)


_LITERALS_OF_PYTHON: Final = {"True": "true", "False": "false", "None": "null"}


def _kind(text: str) -> str | None:
    """The type of the JSON that `text` is; None where it is none, or is a quoted string, which is text like any."""
    try:
        whole_value(text)
    except MalformedError:
        return None
    kind = _LITERALS.get(text) or _FIRST.get(text[0], "number")
    return None if kind == "string" else kind


def _is_whole(number: str) -> bool:
    digits, _, exponent = number.lower().partition("e")
    return exponent[:1] != "-" and not digits.partition(".")[2].strip("0")


def _types(schema: Any, root: Mapping[str, Any], nesting: int) -> Iterator[str]:
    if not isinstance(schema, Mapping) or nesting > _MAX_NESTING:
        return
    kind = schema.get("type")
    yield from [kind] if isinstance(kind, str) else [each for each in kind or () if isinstance(each, str)]
    values = schema.get("enum")
    for value in values if isinstance(values, list) else [schema["const"]] if "const" in schema else []:
        if kind is None:
            yield _type_of(value)
    for name in ("anyOf", "oneOf", "allOf"):
        inner = schema.get(name)
        for each in inner if isinstance(inner, list) else ():
            yield from _types(each, root, nesting + 1)
    if isinstance(schema.get("$ref"), str):
        yield from _types(_referred(schema["$ref"], root), root, nesting + 1)


def _type_of(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case None:
            return "null"
        case str():
            return "string"
        case int() | float():
            return "number"
        case list():
            return "array"
    return "object"


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    """What `#/a/b` points to inside the schema; None where it points to nothing, or outside."""
    here: Any = root
    if not reference.startswith("#"):
        return None
    for part in reference[1:].split("/")[1:]:
        here = here.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(here, Mapping) else None
    return here
