"""The reference page of InferenceServer: every field of `spec` and `status`, from the schema of the CRD.

Owns the page's layout. In: `crd`. Out: markdown. Pure.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from plimsoll_operator.crd import crd, spec_schema, status_schema

HEAD = "| field | type | allowed | default | |\n|---|---|---|---|---|"


def reference_page() -> str:
    """The whole page, without the line that says it is generated."""
    version = crd()["spec"]["versions"][0]
    columns = [f"| {each['name']} | `{each['jsonPath']}` |" for each in version["additionalPrinterColumns"]]
    lines = [
        "# InferenceServer, plimsoll.dev/v1alpha1",
        "",
        "Short name `infsrv`. `kubectl explain infsrv.spec` shows the same. A field that is not set stays not set.",
        "",
        "## spec",
        "",
        HEAD,
        *_rows(spec_schema()),
        "",
        "## Rules",
        "",
        "Checked when a manifest is applied; only values that were set are compared.",
        "",
        *(f"- `{place or 'metadata'}`: {message}" for place, message in _rules()),
        "",
        "## status",
        "",
        HEAD,
        *_rows(status_schema()),
        "",
        "## Columns of `kubectl get`",
        "",
        "| column | from |",
        "|---|---|",
        *columns,
    ]
    return "\n".join(lines) + "\n"


def _rows(schema: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    required = schema.get("required", ())
    for name, member in schema["properties"].items():
        path = f"{prefix}{name}"
        text = str(member.get("description", "")).replace("|", "\\|")
        default = "required" if name in required else member.get("default", "")
        shown = str(default).lower() if isinstance(default, bool) else default
        yield f"| `{path}` | {_kind(member)} | {_allowed(member)} | {shown} | {text} |"
        item = member.get("items", member)
        if "properties" in item:
            yield from _rows(item, f"{path}[]." if "items" in member else f"{path}.")


def _kind(member: Mapping[str, Any]) -> str:
    if member.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if member.get("type") == "array":
        return f"list of {_kind(member['items'])}"
    return "map" if "additionalProperties" in member else str(member["type"])


def _allowed(member: Mapping[str, Any]) -> str:
    if "enum" in member:
        return ", ".join(member["enum"])
    low, high = member.get("minimum"), member.get("maximum")
    if low is not None and high is not None:
        return f"{'above ' if member.get('exclusiveMinimum') else ''}{low:,} to {high:,}"
    if "pattern" in member:
        return "`" + str(member["pattern"]).replace("|", "\\|") + "`"
    for bound, words in (("maxLength", "characters"), ("maxItems", "items"), ("maxProperties", "entries")):
        if bound in member:
            return f"up to {member[bound]:,} {words}"
    return ""


def _rules() -> Iterator[tuple[str, str]]:
    schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for rule in schema["x-kubernetes-validations"]:
        yield "", rule["message"]
    yield from _rules_below(schema["properties"]["spec"], "spec")


def _rules_below(schema: Mapping[str, Any], place: str) -> Iterator[tuple[str, str]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield place, rule["message"]
    if "items" in schema:
        yield from _rules_below(schema["items"], f"{place}[]")
    for name, member in schema.get("properties", {}).items():
        yield from _rules_below(member, f"{place}.{name}")
