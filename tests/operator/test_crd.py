"""The CRD by its structure; what the API server makes of it is asked of a real one in tests/operator_api."""

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from doubles.manifests import RIGHT, UNKNOWN, WRONG, manifest, names_all
from doubles.operator_objects import BODY, SETTINGS, reading, server, settled
from plimsoll_operator.budgets import FIELDS, read_counts
from plimsoll_operator.crd import crd, crd_yaml, spec_schema, status_schema
from plimsoll_operator.crd_check import in_words, missing_fields
from plimsoll_operator.crd_reference import reference_page
from plimsoll_operator.desired import desired
from plimsoll_operator.names import NAME_PATTERN
from plimsoll_operator.observed import RequestCounts
from plimsoll_operator.plan import plan
from plimsoll_operator.spec import SPEC_PATHS, ManifestError, read_manifest, to_runtime_config
from plimsoll_operator.status import status
from plimsoll_operator.workload import WORKLOAD_FIELDS
from plimsoll_runtime.contract.config import RuntimeConfig

VERSION = crd()["spec"]["versions"][0]
ROOT = VERSION["schema"]["openAPIV3Schema"]
FORBIDDEN = {"$ref", "$defs", "title", "anyOf-null", "nullable", "patternProperties", "propertyNames", "const", "oneOf"}


METRICS = """\
# HELP plimsoll_requests_total Requests that ended.
# TYPE plimsoll_requests_total counter
plimsoll_requests_total{outcome="completed",route="/v1/chat/completions"} 3.0
plimsoll_requests_total{outcome="refused",route="/v1/messages"} 9.0
plimsoll_requests_created{outcome="refused",route="/v1/messages"} 1.7e+09
plimsoll_refusals_total{reason="context_length_exceeded",route="/v1/messages"} 9.0
plimsoll_refusals_total{reason="invalid_value",route="/v1/budget"} 5.0
plimsoll_requests_running 1.0
"""


def parts(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema in a schema."""
    yield path, schema
    for name, member in schema.get("properties", {}).items():
        yield from parts(member, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from parts(schema[key], f"{path}[]")


@pytest.mark.parametrize(("path", "schema"), list(parts(ROOT)), ids=[path or "root" for path, _ in parts(ROOT)])
def test_the_schema_is_structural_and_bounded(path: str, schema: dict[str, Any]) -> None:
    """Without bounds the API server prices rules as endless and refuses the CRD."""
    assert not FORBIDDEN & schema.keys()
    if schema.get("x-kubernetes-int-or-string"):
        assert schema["anyOf"] == [{"type": "integer"}, {"type": "string"}]
        assert "type" not in schema
        return
    bounded = path.startswith((".spec", ".status"))
    match schema["type"]:
        case "string" if bounded and "enum" not in schema and schema.get("format") != "date-time":
            assert schema["maxLength"] <= 32768
        case "array":
            assert schema["maxItems"] <= 64
        case "object" if "additionalProperties" in schema:
            assert schema["maxProperties"] <= 32
            assert "properties" not in schema
    preserved = schema.get("x-kubernetes-preserve-unknown-fields", False)
    assert preserved == (path == ".spec.affinity")
    for key in schema.get("x-kubernetes-list-map-keys", ()):
        assert key in schema["items"]["required"]


@pytest.mark.parametrize("path", [*SPEC_PATHS, *WORKLOAD_FIELDS])
def test_every_field_of_the_manifest_is_in_the_schema(path: str) -> None:
    schema = spec_schema()
    for key in path.split("."):
        schema = schema["properties"][key]
    assert schema["description"]
    setting = SPEC_PATHS.get(path)
    default = RuntimeConfig.model_fields[setting].default if setting else WORKLOAD_FIELDS[path][1].default
    if isinstance(default, str):
        assert schema["default"].lower() == default.lower().replace("-", "")
    elif isinstance(default, int | float):
        assert schema["default"] == default
    else:
        assert "default" not in schema


@pytest.mark.parametrize(
    "rule",
    [rule for _, part in parts(ROOT) for rule in part.get("x-kubernetes-validations", ())],
    ids=lambda r: r["rule"][:60],
)
def test_rules_have_a_message_and_balanced_expressions(rule: dict[str, str]) -> None:
    assert rule["message"].strip()
    assert "\n" not in rule["message"]
    for expression in (rule["rule"], rule.get("messageExpression", "''")):
        assert expression.count("'") % 2 == 0
        assert expression.count("(") == expression.count(")")
    text = rule.get("messageExpression", "")
    if ".format(" in text:
        assert len(re.findall(r"%[sd]", text)) == num_arguments(text.rpartition(".format([")[2])


def num_arguments(text: str) -> int:
    """Of a list whose first bracket has been read: one more than the commas outside of further brackets."""
    depth, count = 1, 1
    for character in text:
        depth += (character in "([") - (character in ")]")
        if depth == 0:
            return count
        count += character == "," and depth == 1
    raise AssertionError(f"no end: {text}")


def test_subresources_and_columns() -> None:
    assert VERSION["subresources"] == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }
    shown = [each["name"] for each in VERSION["additionalPrinterColumns"] if not each.get("priority")]
    assert shown == ["Ready", "Reason", "Replicas", "Context", "Max-Out", "Slots", "Budget", "Age"]


def test_what_the_operator_writes_into_the_status_is_in_the_schema() -> None:
    """B126: status fields that the schema does not know are stripped without a word."""
    seen_server = server({"maxOutput": {"default": 512}})
    _, observed = settled(seen_server, a=reading(running_slots=1))
    counts = (RequestCounts(0, 0, {}), RequestCounts(299, 3, {"queue_full": 3}))
    observed = replace(observed, request_counts={"a": counts})
    planned = plan(seen_server, desired(seen_server, SETTINGS), observed)
    written = status(seen_server, observed, planned, datetime(2026, 1, 1, tzinfo=UTC))
    assert "refusals" in written
    assert "differences" in written["replicaBudgets"][0]
    assert list(unknown(written, status_schema())) == []


def unknown(value: Any, schema: dict[str, Any], path: str = "status") -> Iterator[str]:
    if isinstance(value, dict):
        for key, below in value.items():
            if key not in schema["properties"]:
                yield f"{path}.{key}"
            else:
                yield from unknown(below, schema["properties"][key], f"{path}.{key}")
    elif isinstance(value, list):
        for item in value:
            yield from unknown(item, schema["items"], f"{path}[]")


def test_the_yaml_says_everything_where_it_stands() -> None:
    text = crd_yaml()
    assert "&id" not in text
    assert yaml.safe_load(text) == crd()
    assert len(text) < 262_144  # client-side apply keeps a copy in an annotation


def test_the_reference_names_every_field() -> None:
    page = reference_page()
    for path in [*SPEC_PATHS, *WORKLOAD_FIELDS]:
        assert f"| `{path}` |" in page


@pytest.mark.parametrize(("change", "expected"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_manifest_is_refused_without_an_api_server_too(
    change: dict[str, Any], expected: tuple[str, ...]
) -> None:
    with pytest.raises(ManifestError) as fault:
        to_runtime_config(read_manifest(manifest(change)), model="/models")
    assert names_all(str(fault.value), expected), str(fault.value)
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize("change", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_an_unknown_field_is_named(change: dict[str, Any]) -> None:
    with pytest.raises(ManifestError) as fault:
        read_manifest(manifest(change))
    assert "is not a field of an InferenceServer" in str(fault.value)


@pytest.mark.parametrize("change", RIGHT.values(), ids=RIGHT.keys())
def test_a_right_manifest_has_objects(change: dict[str, Any]) -> None:
    assert desired(read_manifest(manifest(change)), SETTINGS)


@pytest.mark.parametrize(("name", "is_legal"), [("a", True), ("a" * 40, True), ("a" * 41, False), ("1a", False)])
def test_the_name_pattern(name: str, is_legal: bool) -> None:
    assert bool(re.match(NAME_PATTERN, name)) == is_legal


def test_budget_fields_are_those_of_the_runtime() -> None:
    """Experts have slots only where they are on disk: tests/test_offload_server.py reads them from a real server."""
    assert {path for path, _ in FIELDS.values()} - {"offload.expert_slots"} == BODY.keys() - {"model"}


def test_counters_of_the_generation_routes_are_read() -> None:
    counts = read_counts(METRICS, at=7.0)
    assert (counts.at, counts.ended, counts.refused) == (7.0, 12, {"context_length_exceeded": 9})


def served(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """What an API server says of a changed schema of ours."""
    schema = copy.deepcopy(crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    change(schema["properties"])
    kind = {"group": "plimsoll.dev", "version": "v1alpha1", "kind": "InferenceServer"}
    others = {"group": "plimsoll.dev", "version": "v1alpha1", "kind": "InferenceServerList"}
    ours, list_of_them = (
        {**schema, "x-kubernetes-group-version-kind": [kind]},
        {"x-kubernetes-group-version-kind": [others]},
    )
    return {"components": {"schemas": {"list": list_of_them, "one": ours, "foreign": {}}}}


OLDER: dict[str, tuple[Callable[[dict[str, Any]], None], tuple[str, ...]]] = {
    "the same": (lambda fields: None, ()),
    "newer": (lambda fields: fields["spec"]["properties"].update(new={"type": "string"}), ()),
    "a field": (lambda fields: fields["spec"]["properties"].pop("contextLength"), ("spec.contextLength",)),
    "a group": (lambda fields: fields["spec"]["properties"].pop("kvCache"), ("spec.kvCache",)),
    "of a list": (
        lambda fields: fields["status"]["properties"]["replicaBudgets"]["items"]["properties"].pop("node"),
        ("status.replicaBudgets[].node",),
    ),
}


@pytest.mark.parametrize("name", OLDER)
def test_fields_that_the_served_crd_lacks_are_named(name: str) -> None:
    """B126. Before, an operator ran on with the CRD of an older version, which dropped the new fields in silence."""
    change, expected = OLDER[name]
    missing = missing_fields(served(change))
    assert missing == expected
    assert all(field in in_words(missing) for field in expected)


def test_of_a_kind_that_is_not_served_everything_is_missing() -> None:
    assert {"spec", "status"} <= set(missing_fields({}))
    assert in_words(tuple("abcdefg")).count(" and 2 more") == 1
