"""Every bound and rule of the CRD before a real kube-apiserver: just outside is refused by name, just inside is not.

The cases are taken from the schema itself, so a bound that is added is tried too.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from doubles.manifests import WRONG, manifest
from operator_api.conftest import Api
from plimsoll_operator.cluster import SERVER, ApiFault, Cluster, connect
from plimsoll_operator.crd import crd

pytestmark = pytest.mark.cluster

Schema = Mapping[str, Any]
ROOT: Schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
NOTHING = object()
"""Instead of a value just inside, where every value that is not outside would do."""


@dataclass(frozen=True, slots=True)
class Bound:
    """One bound of the field at `path`: what is outside and what is inside, and what is said of the former."""

    path: str
    name: str
    outside: Any
    inside: Any
    says: str
    below: str = ""


def fields(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    yield path, schema
    for name, member in schema.get("properties", {}).items():
        yield from fields(member, f"{path}.{name}")
    if "items" in schema:
        yield from fields(schema["items"], f"{path}[0]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from fields(schema["additionalProperties"], f"{path}.key")


def bounds(path: str, schema: Schema) -> Iterator[Bound]:
    for name, bound in schema.items():
        match name:
            case "minimum":
                step = 1 if schema.get("exclusiveMinimum") else 0
                yield Bound(path, name, bound - 1 + step, bound + step, "greater than")
            case "maximum":
                yield Bound(path, name, bound + 1, bound, "less than or equal to")
            case "minLength":
                yield Bound(path, name, "", "a", "at least")
            case "maxLength":
                yield Bound(path, name, "1" * (bound + 1), "1" * bound, "Too long")
            case "pattern":
                yield Bound(path, name, "\t", NOTHING, "should match")
            case "enum":
                yield Bound(path, name, "Nonsense", bound[0], "Unsupported value")
            case "minItems":
                yield Bound(path, name, items(schema, bound - 1), items(schema, bound), "at least")
            case "maxItems":
                yield Bound(path, name, items(schema, bound + 1), items(schema, bound), "Too many")
            case "maxProperties":
                yield Bound(path, name, members(bound + 1), members(bound), "Too many")
            case "required":
                for each in bound:
                    yield Bound(path, f"required {each}", {}, NOTHING, "Required value", f".{each}")


def items(schema: Schema, count: int) -> list[Any]:
    """Of the type that the list holds; its members need not be complete."""
    match schema["items"]["type"]:
        case "object":
            return [{"name": f"n{number}"} for number in range(count)]
        case "integer":
            return list(range(1, count + 1))
        case _:
            return [f"v{number}" for number in range(count)]


def members(count: int) -> dict[str, str]:
    return {f"k{number}": "1" for number in range(count)}


BOUNDS = [bound for path, schema in fields(ROOT["properties"]["spec"], "spec") for bound in bounds(path, schema)]


def document(path: str, value: Any) -> dict[str, Any]:
    """The smallest manifest with the value at its path, in lists as their only member."""
    head, _, inner = path.partition("[0]")
    if not inner and not path.endswith("[0]"):
        return manifest({path: value})
    *_, member = wrapped(inner, value)
    return manifest({head: [member]})


def wrapped(path: str, value: Any) -> Iterator[Any]:
    """The value in the objects and lists of its path, from the inside out."""
    yield value
    for key, is_list in reversed(re.findall(r"\.(\w+)((?:\[0\])?)", path)):
        value = {key: [value] if is_list else value}
        yield value


@pytest.fixture(scope="module")
def cluster(api: Api) -> Cluster:
    return connect(api.cluster.kubeconfig)


def refusal(cluster: Cluster, wrong: Mapping[str, Any]) -> str:
    """What the API server says against it, empty when it would take it."""
    try:
        cluster._ask("POST", SERVER.path("default"), body=wrong, query={"dryRun": "All"})
    except ApiFault as fault:
        return str(fault)
    return ""


def is_said(message: str, bound: Bound) -> bool:
    """Whether the sentence about this very field says it."""
    said = re.split(r", (?=spec[.:\[]|<nil>)", message.removeprefix("["))
    start = f"{bound.path}{bound.below}: "
    return any(each.startswith(start) and (bound.says in each or bound.says == "Required value") for each in said)


def test_no_value_beyond_a_bound_is_taken_and_none_within_is_refused_for_it(cluster: Cluster) -> None:
    """Collected, since there are hundreds, and the first would hide the others."""
    assert len(BOUNDS) > 150
    wrong = []
    for bound in BOUNDS:
        outside = refusal(cluster, document(bound.path, bound.outside))
        if not is_said(outside.partition("is invalid: ")[2], bound):
            wrong.append((bound.path, bound.name, "outside", outside[:300]))
        if bound.inside is not NOTHING:
            inside = refusal(cluster, document(bound.path, bound.inside))
            if is_said(inside.partition("is invalid: ")[2], bound):
                wrong.append((bound.path, bound.name, "inside", inside[:300]))
    assert wrong == [], wrong


RULES = [rule for _, schema in fields(ROOT, "") for rule in schema.get("x-kubernetes-validations", ())]


def fixed_words(rule: Mapping[str, str]) -> list[str]:
    """Of a rule's message: what stands in it whatever was given."""
    formatted = re.search(r"'([^']*)'\.format\(", rule.get("messageExpression", ""))
    text = rule["message"] if formatted is None else formatted[1]
    return [part for part in re.split(r"%[sd]", text) if part]


def test_every_rule_is_broken_by_a_manifest_that_is_known_to_be_wrong(cluster: Cluster) -> None:
    said = [refusal(cluster, manifest(change)) for change, _ in WRONG.values()]
    unspoken = [rule["rule"] for rule in RULES if not any(all(w in each for w in fixed_words(rule)) for each in said)]
    assert len(RULES) > 20
    assert unspoken == []
