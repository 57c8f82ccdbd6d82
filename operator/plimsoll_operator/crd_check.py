"""Whether the CRD that the API server serves knows every field that this operator knows: an older one is noticed here.

Owns that comparison and its sentence. In: the API server's OpenAPI document of our group, which everybody may read, the
CRD itself not. Out: the paths of fields that are missing. Pure. An API server drops what its CRD does not know, so with
an older CRD a new field would be set by users and written by us, and be nowhere.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from plimsoll_operator import names
from plimsoll_operator.crd import crd

MOST_NAMED: Final = 5


def missing_fields(openapi: Mapping[str, Any]) -> tuple[str, ...]:
    """Every field of our schema that the served one lacks; of a group that is missing, the group alone."""
    ours = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return tuple(_missing(ours, _served(openapi), ""))


def in_words(missing: tuple[str, ...]) -> str:
    """One sentence for the log."""
    named = ", ".join(missing[:MOST_NAMED])
    more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
    return (
        f"the CRD {names.PLURAL}.{names.GROUP} in this cluster is older than this operator: it lacks {named}{more}, "
        "which the API server drops without a word; apply crds/inferenceservers.yaml of this version, or set "
        "crds.install=true"
    )


def _served(openapi: Mapping[str, Any]) -> Mapping[str, Any]:
    kind = {"group": names.GROUP, "version": names.VERSION, "kind": names.KIND}
    for schema in ((openapi.get("components") or {}).get("schemas") or {}).values():
        if kind in schema.get("x-kubernetes-group-version-kind", ()):
            found: Mapping[str, Any] = schema
            return found
    return {}


def _missing(ours: Mapping[str, Any], served: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, member in ours.get("properties", {}).items():
        place = f"{path}.{name}" if path else name
        if name in served.get("properties", {}):
            yield from _missing(member, served["properties"][name], place)
        else:
            yield place
    for inner, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if inner in ours:
            yield from _missing(ours[inner], served.get(inner) or {}, f"{path}{mark}")
