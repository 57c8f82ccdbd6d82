"""How a setting is described to people: one wording for `--help`, refusals and reference pages.

Owns sentences about `RuntimeConfig`, made from its own schema, so that a bound or a default is never written twice.
In: the name of a setting, and what was given. Out: text. It reads no flags and no manifest.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import ValidationError

from plimsoll_runtime.contract.config import RuntimeConfig, setting_extra
from plimsoll_runtime.contract.values import value_text

NOT_SET: Final = "not set"
TEXT_UNITS: Final = frozenset({"source", "name", "word", "device", "address", "path", "switch"})
"""Units that say what a value is; the others count something and are written behind the number."""

_WHOLE_SCHEMA: Final[Mapping[str, Any]] = RuntimeConfig.model_json_schema()
_SCHEMA: Final[Mapping[str, Any]] = _WHOLE_SCHEMA["properties"]


def value_schema(name: str) -> Mapping[str, Any]:
    """JSON schema of a setting's value, without the alternative "not set". Raises KeyError for an unknown name."""
    schema: Mapping[str, Any] = _SCHEMA[name]
    for alternative in schema.get("anyOf", ()):
        if alternative["type"] != "null":
            return {**schema, **alternative}
    return schema


def item_schema(name: str) -> Mapping[str, Any]:
    """JSON schema of one entry of a setting that is a list."""
    items: Mapping[str, Any] = value_schema(name)["items"]
    reference = items.get("$ref")
    return items if reference is None else _WHOLE_SCHEMA["$defs"][reference.rpartition("/")[2]]


def allowed_values(name: str) -> str:
    """What may be given, as a noun phrase: "a whole number from 1 to 4,096 (sequences)"."""
    schema, unit = value_schema(name), unit_of(name)
    if "enum" in schema:
        return " or ".join(schema["enum"])
    match schema["type"]:
        case "integer" if unit == "amount":
            return f"whole bytes up to {schema['maximum']:,}, or an amount such as 512Mi or 4Gi"
        case "array":
            return f"{schema['minItems']} to {schema['maxItems']} {_items(name)}, with commas between"
        case "integer":
            return f"a whole number from {schema['minimum']:,} to {schema['maximum']:,} ({unit})"
        case "number":
            return f"a number of {unit} above {schema['exclusiveMinimum']:,} and up to {schema['maximum']:,}"
        case "boolean":
            return "true or false"
    if "pattern" in schema:
        return f"a text of the form {schema['pattern'].strip('^$')} ({unit})"
    return f"text that is not empty ({unit})"


def _items(name: str) -> str:
    schema, unit = item_schema(name), unit_of(name)
    if schema["type"] == "integer":
        return f"whole numbers from {schema['minimum']:,} to {schema['maximum']:,} ({unit})"
    return f"entries {unit}"


def default_text(name: str) -> str:
    """The default as a reader would type it, with its unit; a required setting says so."""
    field = RuntimeConfig.model_fields[name]
    if field.is_required():
        return "required"
    if field.default in (None, ()):
        return NOT_SET
    if isinstance(field.default, bool):
        return "on" if field.default else "off"
    unit = unit_of(name)
    return value_text(field.default) if unit in TEXT_UNITS or unit == "port" else f"{value_text(field.default)} {unit}"


def unit_of(name: str) -> str:
    return str(setting_extra(name)["unit"])


def refused_value(shown_name: str, given: Any, name: str) -> str:
    """The sentence for a value that a setting cannot take."""
    shown = json.dumps(given) if given is None or isinstance(given, bool) else repr(given)
    return f"{shown_name}: {shown} was given, allowed is {allowed_values(name)}"


def configuration_fault(error: ValidationError, shown_name: Callable[[str], str]) -> str:
    """One sentence for the first fault of a `RuntimeConfig`; `shown_name` says how the reader calls a setting."""
    fault = error.errors(include_url=False)[0]
    if not fault["loc"]:
        return str(fault["msg"]).removeprefix("Value error, ")
    name = str(fault["loc"][0])
    if fault["type"] == "missing":
        return f"{shown_name(name)}: required, but not given; allowed is {allowed_values(name)}"
    return refused_value(shown_name(name), fault["input"], name)
