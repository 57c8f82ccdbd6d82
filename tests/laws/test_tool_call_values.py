"""Values in tool calls, for all of them: read strictly as JSON, from Python's literals, and from bare text."""

import json
from typing import Any, NoReturn

from hypothesis import assume, given
from hypothesis import strategies as st

from plimsoll_runtime.text.tool_calls.json_text import whole_value
from plimsoll_runtime.text.tool_calls.reader import MalformedError
from plimsoll_runtime.text.tool_calls.typed_values import ANYTHING, STRING, json_value
from text.tool_call_corpus import said

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES: Any = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=8
)
NEARLY_JSON = st.text(st.sampled_from('{}[]",:0123456789.eE+-\\/bfnrtu truefalsn\n\x01é'), max_size=16)


def is_json(text: str) -> bool:
    """What Python's own reader says, without the words that are no JSON and characters that are none."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(constant)

    try:
        value = json.loads(text, parse_constant=refuse)
        json.dumps(value, ensure_ascii=False).encode()
    except ValueError:
        return False
    return True


def is_accepted(text: str) -> bool:
    try:
        whole_value(text)
    except MalformedError:
        return False
    return True


@given(text=NEARLY_JSON | VALUES.map(json.dumps) | VALUES.map(lambda value: json.dumps(value, ensure_ascii=False)))
def test_json_is_what_python_reads_as_json(text: str) -> None:
    assert is_accepted(text) == is_json(text)


@given(value=VALUES, at=st.integers(0, 40), put=st.sampled_from(['"', "{", "]", ",", "\\", "0", "-", "\n", "\\ud800"]))
def test_json_with_one_fault_is_judged_as_python_judges_it(value: Any, at: int, put: str) -> None:
    text = json.dumps(value)
    faulty = text[:at] + put + text[at + 1 :]
    assert is_accepted(faulty) == is_json(faulty)


@given(value=VALUES)
def test_a_literal_of_python_means_in_json_what_it_means_in_python(value: Any) -> None:
    text = f"[f(x={value!r}, y=1)]"
    [[name, arguments]] = said("pythonic", text, {"f": {}}).calls
    assert name == "f"
    assert json.loads(arguments) == {"x": value, "y": 1}


@given(value=TEXTS, key=st.from_regex(r"[a-z_]{1,6}", fullmatch=True))
def test_a_bare_text_comes_back_as_it_was(value: str, key: str) -> None:
    """Qwen3-Coder's template puts one line end on each side of a value."""
    text = f"<tool_call>\n<function=f>\n<parameter={key}>\n{value}\n</parameter>\n</function>\n</tool_call>"
    tools = {"f": {"type": "object", "properties": {key: {"type": "string"}}}}
    [[_, arguments]] = said("qwen3_coder", text, tools).calls
    assert json.loads(arguments) == {key: value}


@given(value=VALUES)
def test_a_bare_value_is_of_a_type_that_the_schema_has_or_a_string(value: Any) -> None:
    text = json.dumps(value)
    assume(not isinstance(value, str))
    assert json_value(text, STRING) == json.dumps(text)
    assert json.loads(json_value(text, ANYTHING)) == value
    assert json_value(text, frozenset({"boolean"})) == (text if isinstance(value, bool) else json.dumps(text))
