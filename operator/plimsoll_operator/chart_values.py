"""The values that the chart takes, and their JSON Schema, by which Helm refuses others before it renders anything.

Owns names, types, bounds and descriptions; defaults stand in the chart's values.yaml alone, so every value but Helm's
own is required. In: nothing. Out: `charts/plimsoll/values.schema.json` as text. What is the same thing elsewhere is
taken from there: names of servers, words of the log, and each ceiling's bound from the field that it limits.
Invariants: what is unknown is refused, except inside Kubernetes' own objects, which the API server knows better; there
is no reference inside the schema, since in draft-07 a description beside one does not count.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints

from plimsoll_operator.crd import spec_schema
from plimsoll_operator.logs import LogFormat, LogLevel
from plimsoll_operator.names import NAME_PATTERN
from plimsoll_operator.workload import DNS_PATTERN, LABEL_PATTERN, Part

DRAFT: Final = "http://json-schema.org/draft-07/schema#"
LEFT_OUT: Final = frozenset({"$defs", "$ref", "title", "default"})
"""What pydantic says besides; `global` has the only default, an empty one."""


def _or_empty(pattern: str) -> str:
    """Empty stands for not set: by a null value Helm removes it, and every value is required."""
    return f"^({pattern.removeprefix('^').removesuffix('$')})?$"


def _most(*path: str) -> int:
    """The bound of a field below `spec`, as the API server has it."""
    schema: Mapping[str, Any] = spec_schema()
    for key in path:
        schema = schema["properties"][key]
    return int(schema["maximum"])


NameOrEmpty = Annotated[str, StringConstraints(pattern=_or_empty(DNS_PATTERN))]
LabelOrEmpty = Annotated[str, StringConstraints(pattern=_or_empty(LABEL_PATTERN))]
Namespaces = frozenset[Annotated[str, StringConstraints(pattern=LABEL_PATTERN)]]


class RuntimeImage(Part):
    """Image of servers whose manifest names none."""

    repository: Annotated[str, StringConstraints(min_length=1, pattern=r"^[^@\s]+$")] = Field(
        description="Image without tag and digest."
    )
    tag: Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$")] = Field(
        description="Tag; the chart's appVersion when empty."
    )
    digest: Annotated[str, StringConstraints(pattern=r"^(sha256:[0-9a-f]{64})?$")] = Field(
        description="Digest, used instead of the tag when given."
    )


class OperatorImage(RuntimeImage):
    """The operator's image."""

    pullPolicy: Literal["Always", "IfNotPresent", "Never"] = Field(description="When the image is pulled.")


class PullSecret(Part):
    """A Secret in the release's namespace."""

    name: Annotated[str, StringConstraints(min_length=1)]


class Log(Part):
    """The operator's log."""

    format: LogFormat = Field(description="Lines of JSON or of text.")
    level: LogLevel = Field(description="What is logged.")


class Crds(Part):
    """The CustomResourceDefinition."""

    install: bool = Field(description="Install and upgrade it with the chart.")
    keep: bool = Field(description="Leave it, and so every InferenceServer, in place on uninstall.")


class Rbac(Part):
    """Permissions."""

    create: bool = Field(description="Make roles and bindings.")
    aggregate: bool = Field(
        description="Let the roles view, edit and admin use InferenceServers; cluster-wide installations only."
    )


class ServiceAccount(Part):
    """The operator's identity."""

    create: bool = Field(description="Make it.")
    name: NameOrEmpty = Field(description="Its name; the release's full name when empty.")
    annotations: dict[str, str] = Field(description="Its annotations.")


class Ceilings(Part):
    """Ceilings for every InferenceServer; 0 is none."""

    enabled: bool = Field(description="Make the ValidatingAdmissionPolicy.")
    contextLength: int = Field(ge=0, le=_most("contextLength"), description="Most spec.contextLength.")
    maxOutputLimit: int = Field(ge=0, le=_most("maxOutput", "limit"), description="Most spec.maxOutput.limit.")
    runningSlots: int = Field(ge=0, le=_most("runningSlots"), description="Most spec.runningSlots.")
    replicas: int = Field(
        ge=0, le=_most("replicas"), description="Most spec.replicas, also through the scale subresource."
    )
    exemptNamespaces: Namespaces = Field(description="Namespaces without ceilings.")


class ServiceMonitor(Part):
    """ServiceMonitor of the Prometheus operator."""

    enabled: bool = Field(description="Make it.")
    interval: Annotated[str, StringConstraints(pattern=r"^[0-9]+(ms|s|m|h)$")] = Field(
        description="Time between scrapes."
    )
    labels: dict[str, str] = Field(description="Its labels.")


class KeysSecret(Part):
    """Where the server's API keys are, in the release's namespace."""

    name: NameOrEmpty = Field(description="Name of the Secret.")
    key: Annotated[str, StringConstraints(pattern=r"^[-._a-zA-Z0-9]*$")] = Field(description="Key in the Secret.")


class Probe(Part):
    """What helm test asks."""

    server: Annotated[str, StringConstraints(pattern=_or_empty(NAME_PATTERN))] = Field(
        description="Name of an InferenceServer; no test when empty."
    )
    namespace: LabelOrEmpty = Field(description="Its namespace; the release's when empty.")
    apiKeysSecret: KeysSecret


class ChartValues(Part):
    """Everything that the chart can be told; defaults are in values.yaml."""

    global_: dict[str, Any] = Field(
        {}, alias="global", description="Helm's own, where this chart is a part of another."
    )
    nameOverride: LabelOrEmpty = Field(description="Instead of the chart's name, in labels and names.")
    fullnameOverride: LabelOrEmpty = Field(
        description="Instead of release and chart name, in the names of all objects."
    )
    image: OperatorImage
    runtimeImage: RuntimeImage
    imagePullSecrets: list[PullSecret] = Field(description="Secrets for pulling the operator's image.")
    watchNamespaces: Namespaces = Field(description="Namespaces that the operator works in; all when empty.")
    hubEndpoint: Annotated[str, StringConstraints(pattern=r"^(https?://\S+)?$")] = Field(
        description="Where hf:// is downloaded from; the public hub when empty."
    )
    resyncSeconds: int = Field(ge=10, le=3600, description="In this time every server is looked at once.")
    leaderElection: bool = Field(description="Hold a Lease while working.")
    log: Log
    crds: Crds
    rbac: Rbac
    serviceAccount: ServiceAccount
    ceilings: Ceilings
    resources: dict[str, Any] = Field(description="Resources of the operator's container, as in a pod.")
    podAnnotations: dict[str, str] = Field(description="Annotations of the operator's pod.")
    podLabels: dict[str, str] = Field(description="Labels of the operator's pod; the chart's own win.")
    nodeSelector: dict[str, str] = Field(description="As in a pod.")
    tolerations: list[dict[str, Any]] = Field(description="As in a pod.")
    affinity: dict[str, Any] = Field(description="As in a pod.")
    priorityClassName: NameOrEmpty = Field(description="As in a pod.")
    serviceMonitor: ServiceMonitor
    probe: Probe


def values_schema() -> dict[str, Any]:
    """JSON Schema of all values, in draft-07, which every Helm 3 reads."""
    whole = ChartValues.model_json_schema(by_alias=True)
    return {
        "$schema": DRAFT,
        "$comment": "Written by `plimsoll generate`. Do not edit.",
        "title": "Values of the Plimsoll operator",
        **_written_out(whole, whole["$defs"]),
    }


def values_schema_json() -> str:
    """The schema as text."""
    return json.dumps(values_schema(), indent=2, ensure_ascii=False) + "\n"


def _written_out(schema: Mapping[str, Any], groups: Mapping[str, Any]) -> dict[str, Any]:
    """With each group in the place of its reference, and what it is for first."""
    full = {**groups[schema["$ref"].rpartition("/")[2]], **schema} if "$ref" in schema else schema
    result = {key: full[key] for key in ("description", "type", *full) if key in full and key not in LEFT_OUT}
    if "properties" in full:
        result["properties"] = {key: _written_out(part, groups) for key, part in full["properties"].items()}
    if "items" in full:
        result["items"] = _written_out(full["items"], groups)
    return result
