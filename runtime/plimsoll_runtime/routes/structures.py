"""The form that an answer is to have, as the routes write it: JSON of a schema, or what our extension asks for.

Owns the shapes of `response_format`, `text.format`, `output_config.format` and `structured_outputs`. In: their JSON
values. Out: a `Structure`, None where text is free, or RefusedError with the path of the fault. Whether a schema can be
enforced is found out later, off the event loop. Sources: the API references of the routes; the extension is vLLM's.
"""

from collections.abc import Mapping
from typing import Any, Final

from plimsoll_runtime.request import Structure, StructureKind, ToolUse
from plimsoll_runtime.routes.body import RefusedError, read_switch, refuse

FORMAT: Final = "response_format"
EXTENSION: Final = "structured_outputs"
OLDER_EXTENSIONS: Final[Mapping[str, str]] = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
"""What vLLM called the kinds of its extension before; each is refused with what to write."""

FIELDS: Final = (FORMAT, EXTENSION, *OLDER_EXTENSIONS)
"""The names on the OpenAI routes."""

_ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}
_KINDS: Final[Mapping[str, StructureKind]] = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
}
_ANY_JSON_OBJECT: Final = "json_object"


def openai_structure(body: Mapping[str, Any]) -> Structure | None:
    """`response_format`, whose schema has an object of its own around it, or the extension."""
    asked = _format(body.get(FORMAT), FORMAT, schema_within="json_schema")
    return _one(asked, extension_structure(body))


def responses_structure(text: Mapping[str, Any] | None, body: Mapping[str, Any]) -> Structure | None:
    """`text.format`, or the extension."""
    asked = _format((text or {}).get("format"), "text.format", schema_within=None)
    return _one(asked, extension_structure(body))


def messages_structure(output_config: Mapping[str, Any] | None, body: Mapping[str, Any]) -> Structure | None:
    """`output_config.format`, its older place `output_format`, or the extension. Always strict, as that API is."""
    current = _messages_format((output_config or {}).get("format"), "output_config.format")
    older = _messages_format(body.get("output_format"), "output_format")
    return _one(_one(current, older), extension_structure(body))


def extension_structure(body: Mapping[str, Any]) -> Structure | None:
    """Exactly one kind."""
    for name, kind in OLDER_EXTENSIONS.items():
        if body.get(name) is not None:
            message = f"{name} is not supported by this server: write {EXTENSION}: {{{kind!r}: ...}}"
            raise refuse("unsupported_parameter", message.replace("'", '"'), name)
    asked = body.get(EXTENSION)
    if asked is None:
        return None
    given = {name: value for name, value in _object(asked, EXTENSION).items() if value not in (None, False)}
    known = [*_KINDS, _ANY_JSON_OBJECT]
    for name in given:
        if name not in known:
            path = f"{EXTENSION}.{name[:80]}"
            message = f"{path} is not supported by this server: give one of {', '.join(known)}"
            raise refuse("unsupported_parameter", message, path)
    if len(given) != 1:
        raise refuse("invalid_value", f"{EXTENSION} must have exactly one of {', '.join(known)}", EXTENSION)
    return _of_extension(*next(iter(given.items())))


def _of_extension(name: str, value: Any) -> Structure:
    param = f"{EXTENSION}.{name}"
    if name == _ANY_JSON_OBJECT:
        read_switch({name: value}, name, path=EXTENSION)
        return Structure("json_schema", _ANY_OBJECT, param)
    if name == "json":
        return Structure("json_schema", _schema(value, param), param, is_strict=True)
    if name == "choice":
        if not isinstance(value, list) or not value or not all(isinstance(text, str) and text for text in value):
            raise refuse("invalid_type", f"{param} must be a list of one text or more, none of them empty", param)
        return Structure("choice", tuple(value), param)
    if not isinstance(value, str):
        raise refuse("invalid_type", f"{param} must be a string", param)
    return Structure(_KINDS[name], value, param)


def _format(value: Any, path: str, *, schema_within: str | None) -> Structure | None:
    if value is None:
        return None
    asked = _object(value, path)
    match asked.get("type"):
        case "text":
            return None
        case "json_object":
            return Structure("json_schema", _ANY_OBJECT, path)
        case "json_schema":
            where = path if schema_within is None else f"{path}.{schema_within}"
            holder = asked if schema_within is None else _object(asked.get(schema_within), where)
            schema = _schema(holder.get("schema"), f"{where}.schema")
            return Structure("json_schema", schema, f"{where}.schema", read_switch(holder, "strict", path=where))
    raise _unknown_type(asked.get("type"), path, "text, json_object or json_schema")


def _messages_format(value: Any, path: str) -> Structure | None:
    if value is None:
        return None
    asked = _object(value, path)
    if asked.get("type") != "json_schema":
        raise _unknown_type(asked.get("type"), path, "json_schema")
    return Structure("json_schema", _schema(asked.get("schema"), f"{path}.schema"), f"{path}.schema", is_strict=True)


def _schema(value: Any, path: str) -> Mapping[str, Any] | bool:
    if value is None:
        raise refuse("missing_required_parameter", f"{path} is required", path)
    return value if isinstance(value, bool) else _object(value, path)


def _object(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise refuse("invalid_type", f"{path} must be an object", path)
    return value


def _unknown_type(kind: Any, path: str, known: str) -> RefusedError:
    where = f"{path}.type"
    return refuse("invalid_value", f"{where} must be {known}, not {str(kind)[:40]!r}", where)


def beside_tools(structure: Structure | None, tool_use: ToolUse | None) -> Structure | None:
    """Raises RefusedError for both: a form has no place for calls."""
    if structure is not None and tool_use is not None:
        message = f"{structure.param} beside tools is not supported by this server: give one, or tool_choice none"
        raise refuse("unsupported_parameter", message, structure.param)
    return structure


def _one(first: Structure | None, second: Structure | None) -> Structure | None:
    """The one that was asked for; both are a contradiction."""
    if first is not None and second is not None:
        message = f"{second.param} and {first.param} both say what form the answer has: give one"
        raise refuse("invalid_parameter_combination", message, second.param)
    return first or second
