"""The law of flags: every configuration survives being written as flags and read again."""

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from plimsoll_runtime.contract.command_line import read_flags, render_flags
from plimsoll_runtime.contract.config import RuntimeConfig
from plimsoll_runtime.contract.wording import item_schema, value_schema

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


def values_of(name: str) -> st.SearchStrategy[Any]:
    """Every value that the setting's own schema allows."""
    schema = value_schema(name)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema["type"]:
        case "integer":
            return st.integers(schema["minimum"], schema["maximum"])
        case "number":
            return st.floats(schema["exclusiveMinimum"], schema["maximum"], exclude_min=True)
        case "boolean":
            return st.booleans()
        case "array":
            return st.lists(_entry(item_schema(name)), min_size=schema["minItems"], max_size=schema["maxItems"])
    return TEXT


def _entry(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    if schema["type"] == "integer":
        return st.integers(schema["minimum"], schema["maximum"])
    tenant, weight = schema["properties"]["tenant"], schema["properties"]["weight"]
    return st.fixed_dictionaries(
        {
            "tenant": st.from_regex(tenant["pattern"], fullmatch=True),
            "weight": st.integers(weight["minimum"], weight["maximum"]),
        }
    )


OPTIONAL = {name: values_of(name) for name in RuntimeConfig.model_fields if name != "model"}


@given(st.fixed_dictionaries({"model": TEXT}, optional=OPTIONAL))
def test_flags_round_trip(settings: dict[str, Any]) -> None:
    try:
        config = RuntimeConfig(**settings)
    except ValidationError:  # limits that contradict each other
        return
    assert read_flags(render_flags(config)) == config
