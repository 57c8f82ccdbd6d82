"""The CustomResourceDefinition of InferenceServer, made from the same models that read a manifest.

Owns the step from JSON schema to the structural schema that Kubernetes takes, the schema of `status`, and the columns.
In: `spec.Spec`, `cel_rules.RULES`. Out: a document, and its YAML. Pure. Invariants: every text, list and map has a
bound; nothing unknown is kept except below `affinity`; an optional field is absent and never null.
"""

from collections.abc import Mapping
from typing import Any, Final

from plimsoll_operator import names
from plimsoll_operator.budgets import FIELDS
from plimsoll_operator.cel_rules import NAME_RULE, RULES, manifest_word, word_rule
from plimsoll_operator.spec import Spec
from plimsoll_operator.status import MAX_REPLICA_BUDGETS
from plimsoll_operator.yaml_text import written_out
from plimsoll_runtime.contract.quantity import BYTES_PATTERN

MAX_TEXT: Final = 1024
MAX_WORD: Final = 16
MAX_NAME: Final = 253
MAX_MESSAGE: Final = 32768
KEPT: Final = ("description", "type", "minimum", "maximum", "minLength", "maxLength", "pattern", "enum")
KEPT_OF_COLLECTIONS: Final = ("minItems", "maxItems", "maxProperties", "required")
KEY_OF_LIST: Final = {
    "spec.env": "name",
    "spec.imagePullSecrets": "name",
    "spec.extraVolumes": "name",
    "spec.fairness.weights": "tenant",
}
"""Lists whose entries are known by a field, so that two managers can own one entry each."""
ATOMIC: Final = frozenset({"SecretKey", "KeyOfObject", "FieldOfPod", "ObjectName", "LabelSelector"})
"""Groups that server-side apply replaces as a whole, as Kubernetes does with its own of these kinds."""

_INTEGER: Final = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_NAME: Final = {"type": "string", "maxLength": MAX_NAME}
_AMOUNT: Final = {"type": "string", "pattern": BYTES_PATTERN, "maxLength": MAX_WORD}
_SENTENCE: Final = {"type": "string", "maxLength": MAX_MESSAGE}


def crd() -> dict[str, Any]:
    """The whole definition."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.PLURAL}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": [names.SHORT_NAME],
                "categories": ["all", "inference"],
            },
            "versions": [_version()],
        },
    }


def crd_yaml() -> str:
    """The definition as text, each part written out where it stands."""
    return written_out(crd())


def spec_schema() -> dict[str, Any]:
    """The structural schema of `spec`."""
    source = Spec.model_json_schema(by_alias=True)
    schema = _structural(source, source.get("$defs", {}), "spec")
    return {**schema, "description": "What to serve, how much each request may cost, and how its pods are made."}


def status_schema() -> dict[str, Any]:
    """The structural schema of `status`."""
    counts = ("replicas", "readyReplicas", "updatedReplicas")
    return {
        "type": "object",
        "description": "What was observed, written by the operator alone.",
        "properties": {
            "observedGeneration": {"type": "integer", "format": "int64"},
            **dict.fromkeys(counts, _INTEGER),
            "selector": {"type": "string", "maxLength": MAX_TEXT},
            "endpoint": {"type": "string", "maxLength": MAX_TEXT},
            "budget": {
                "type": "object",
                "description": "The limits that the spec declares, and those that hold whichever replica answers.",
                "properties": {each: {"type": "object", "properties": _limits()} for each in ("declared", "effective")},
            },
            "replicaBudgets": _replica_budgets(),
            "refusals": {
                "type": "object",
                "description": "Present while every request of the last five minutes was refused for one reason.",
                "properties": {"reason": _NAME, "requests": {"type": "integer", "format": "int64"}},
            },
            "conditions": _conditions(),
        },
    }


def _version() -> dict[str, Any]:
    return {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": _columns(),
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "description": "A model served over HTTP, with the cost of a request declared once.",
                "required": ["spec"],
                "x-kubernetes-validations": [NAME_RULE],
                "properties": {
                    "apiVersion": {"type": "string"},
                    "kind": {"type": "string"},
                    "metadata": {"type": "object"},
                    "spec": spec_schema(),
                    "status": status_schema(),
                },
            }
        },
    }


def _columns() -> list[dict[str, Any]]:
    limits = ".status.budget.effective"
    return [
        _column("Ready", "string", _condition(names.CONDITION_READY, "status")),
        _column("Reason", "string", _condition(names.CONDITION_READY, "reason")),
        _column("Replicas", "integer", ".status.readyReplicas", "Replicas that are ready"),
        _column("Context", "integer", f"{limits}.contextLength", "Most prompt + output tokens of one request"),
        _column("Max-Out", "integer", f"{limits}.maxOutputLimit", "Most output tokens of one request, where limited"),
        _column("Slots", "integer", f"{limits}.runningSlots", "Sequences that one replica computes at once"),
        _column("Budget", "string", _condition(names.CONDITION_BUDGET_CONSISTENT, "status")),
        _column("Age", "date", ".metadata.creationTimestamp"),
        {**_column("Default-Out", "integer", f"{limits}.maxOutputDefault"), "priority": 1},
        {**_column("Wanted", "integer", ".spec.replicas"), "priority": 1},
        {**_column("Model", "string", ".spec.model.source"), "priority": 1},
        {**_column("Endpoint", "string", ".status.endpoint"), "priority": 1},
    ]


def _column(name: str, kind: str, path: str, description: str = "") -> dict[str, Any]:
    column = {"name": name, "type": kind, "jsonPath": path}
    return {**column, "description": description} if description else column


def _condition(kind: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


def _structural(schema: Mapping[str, Any], groups: Mapping[str, Any], place: str) -> dict[str, Any]:
    """A JSON schema without references, nulls and titles, with a bound and the rules of its place."""
    full = _resolved(schema, groups)
    result: dict[str, Any] = {key: full[key] for key in KEPT if key in full}
    if "anyOf" in full:
        result |= _integer_or_string(full["anyOf"])
    elif full.get("unit") == "amount":
        result = {"description": full["description"]} | _integer_or_string([full, _AMOUNT])
    elif full.get("unit") == "word":
        result = _word(result, full)
    elif full["type"] == "string" and "enum" not in full:
        result.setdefault("maxLength", MAX_TEXT)
    elif full["type"] in ("object", "array"):
        result |= _collection(full, groups, place)
    if "exclusiveMinimum" in full:
        result |= {"minimum": full["exclusiveMinimum"], "exclusiveMinimum": True}
    default = full.get("default")
    if default not in (None, []) and full.get("type") != "object":
        result.setdefault(
            "default", int(default) if isinstance(default, float) and default == int(default) else default
        )
    rules = [*result.pop("x-kubernetes-validations", ()), *RULES.get(place, ())]
    return {**result, "x-kubernetes-validations": rules} if rules else result


def _resolved(schema: Mapping[str, Any], groups: Mapping[str, Any]) -> dict[str, Any]:
    """With the group that it refers to, and without the alternative null."""
    alternatives = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    own = {key: value for key, value in schema.items() if key not in ("anyOf", "$ref")}
    if len(alternatives) == 1:
        return {**_resolved(alternatives[0], groups), **own}
    if alternatives:
        return {**own, "anyOf": alternatives}
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return {**groups[name], "atomic": name in ATOMIC, **own}
    return dict(schema)


def _collection(full: Mapping[str, Any], groups: Mapping[str, Any], place: str) -> dict[str, Any]:
    result = {key: full[key] for key in KEPT_OF_COLLECTIONS if key in full}
    if full["type"] == "array":
        result["items"] = _structural(full["items"], groups, f"{place}[]")
        key = KEY_OF_LIST.get(place)
        return {**result, "x-kubernetes-list-type": "atomic" if key is None else "map"} | (
            {} if key is None else {"x-kubernetes-list-map-keys": [key]}
        )
    if "properties" in full:
        members = full["properties"].items()
        result["properties"] = {key: _structural(member, groups, f"{place}.{key}") for key, member in members}
    elif "patternProperties" in full:
        (value,) = full["patternProperties"].values()
        result["additionalProperties"] = _structural(value, groups, f"{place}{{}}")
    else:
        result["x-kubernetes-preserve-unknown-fields"] = True
    return {**result, "x-kubernetes-map-type": "atomic"} if full.get("atomic") else result


def _integer_or_string(alternatives: list[Mapping[str, Any]]) -> dict[str, Any]:
    number, text = sorted(alternatives, key=lambda each: str(each["type"]))
    return {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        **{key: number[key] for key in ("minimum",) if key in number},
        **{key: text[key] for key in ("pattern", "maxLength") if key in text},
    }


def _word(result: Mapping[str, Any], full: Mapping[str, Any]) -> dict[str, Any]:
    """A word of the contract, which is matched without regard to case and shown as Kubernetes writes words."""
    rest = {key: value for key, value in result.items() if key != "enum"}
    rules = [word_rule(full["enum"])]
    return {**rest, "maxLength": MAX_WORD, "default": manifest_word(full["default"]), "x-kubernetes-validations": rules}


def _limits() -> dict[str, Any]:
    return {name: {"type": "string", "maxLength": MAX_WORD} if name == "overBudget" else _INTEGER for name in FIELDS}


def _replica_budgets() -> dict[str, Any]:
    value = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}], "maxLength": 64}
    difference = {
        "type": "object",
        "required": ["field"],
        "properties": {"field": _NAME, "declared": value, "observed": value},
    }
    return {
        "type": "array",
        "description": f"What each replica says of itself, the first {MAX_REPLICA_BUDGETS} by name.",
        "maxItems": MAX_REPLICA_BUDGETS,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["pod"],
        "items": {
            "type": "object",
            "required": ["pod"],
            "properties": {
                "pod": _NAME,
                "node": _NAME,
                "revision": {**_NAME, "description": "Hash of the configuration that the pod was started for."},
                "consistent": {
                    "type": "boolean",
                    "description": "Absent where it was not read, or the pod is of an older revision.",
                },
                "unread": {**_SENTENCE, "description": "Why its limits could not be read."},
                "differences": {"type": "array", "maxItems": len(FIELDS), "items": difference},
                **_limits(),
            },
        },
    }


def _conditions() -> dict[str, Any]:
    return {
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
            "properties": {
                "type": {"type": "string", "maxLength": 316},
                "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                "reason": {"type": "string", "minLength": 1, "maxLength": MAX_TEXT},
                "message": _SENTENCE,
                "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
                "lastTransitionTime": {"type": "string", "format": "date-time"},
            },
        },
    }
