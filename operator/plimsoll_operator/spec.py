"""The `InferenceServer` manifest, built from the contract, and what it means as a `RuntimeConfig`.

Owns the shape of a manifest: which setting lies at which path below `spec.` is said by the contract itself
(`json_schema_extra["spec"]`), so types, bounds and defaults are written once; what only a cluster honours is said by
`workload`. In: a parsed YAML document, or a live object. Out: an `InferenceServer`, then a `RuntimeConfig`. It opens
no file and talks to no cluster. A fault is a `ManifestError` whose text is one sentence that names the field.
Invariant: what a manifest does not set stays not set.
"""

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, ValidationError, create_model

from plimsoll_operator.names import ANNOTATION_RESTART, API_VERSION, KIND, NAME_PATTERN
from plimsoll_operator.quantity import canonical_quantities
from plimsoll_operator.workload import NOT_IN_PODS, STRICT, WORKLOAD_FIELDS
from plimsoll_runtime.contract.config import RuntimeConfig, setting_extra
from plimsoll_runtime.contract.model_source import (
    ModelSource,
    ModelSourceError,
    has_scheme,
    only_in_cluster,
    parse_model_source,
)
from plimsoll_runtime.contract.wording import configuration_fault, refused_value

SPEC_PATHS: Final[Mapping[str, str]] = {
    spec: name for name in RuntimeConfig.model_fields if (spec := setting_extra(name)["spec"]) is not None
}
"""`contextLength` -> `context_length`, `maxOutput.default` -> `max_output_default`, ..."""

KEYED_FIELD: Final = "fairness.weights"
"""Names API keys, which are in a Secret: without a cluster it means as little as the workload's fields."""


class ManifestError(ValueError):
    """The document is not an InferenceServer that can be run; the text is one sentence for its author."""


class Metadata(BaseModel):
    """What a manifest may set of a Kubernetes object's metadata, and what the API server adds to know it by."""

    model_config = STRICT

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    namespace: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    uid: str | None = None
    generation: int | None = None
    deletionTimestamp: str | None = None


def _spec_fields() -> dict[str, tuple[Any, Any]]:
    """Path -> (type, field) of everything below `spec`: the contract's settings, then the workload's fields."""
    fields: dict[str, tuple[Any, Any]] = {}
    for path, setting in SPEC_PATHS.items():
        info = copy.copy(RuntimeConfig.model_fields[setting])
        fields[path] = (info.annotation, info)
    return {**fields, **WORKLOAD_FIELDS}


def _group(name: str, fields: Mapping[str, tuple[Any, Any]]) -> Any:
    """The model of these fields, with a model of its own for each group of paths that begin alike."""
    members: dict[str, Any] = {}
    for path in fields:
        key, _, deeper = path.partition(".")
        if key in members:
            continue
        if not deeper:
            members[key] = fields[path]
            continue
        below = {other.removeprefix(f"{key}."): it for other, it in fields.items() if other.startswith(f"{key}.")}
        group = _group(f"{name}{key[0].upper()}{key[1:]}", below)
        required = any(field.is_required() for field in group.model_fields.values())
        members[key] = (group, ... if required else group())
    if "from" in members:  # a word that Python keeps for itself; the field's alias is what manifests say
        members["from_"] = members.pop("from")
    return create_model(name, __config__=STRICT, **members)


Spec: Final = _group("InferenceServerSpec", _spec_fields())


class InferenceServer(BaseModel):
    """One manifest, checked field by field; what the fields mean together is checked by `to_runtime_config`."""

    model_config = STRICT

    apiVersion: Literal["plimsoll.dev/v1alpha1"]  # the manifest's own spelling
    kind: Literal["InferenceServer"]
    metadata: Metadata
    spec: Any

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return "default" if self.metadata.namespace is None else self.metadata.namespace

    @property
    def replicas(self) -> int:
        return int(self.spec.replicas)

    @property
    def source(self) -> ModelSource:
        """Where the model lies; the manifest was refused if this could not be parsed."""
        return parse_model_source(self.spec.model.source)


def read_manifest(document: Any) -> InferenceServer:
    """The server that one YAML document declares. Raises ManifestError."""
    if not isinstance(document, dict):
        raise ManifestError(f"a manifest is a mapping with apiVersion, kind, metadata and spec, not {document!r:.60}")
    kind = f"{document.get('apiVersion')}, kind {document.get('kind')}"
    if kind != f"{API_VERSION}, kind {KIND}":
        raise ManifestError(f"apiVersion {kind} was given, expected apiVersion {API_VERSION}, kind {KIND}")
    try:
        server = InferenceServer.model_validate(document)
        spec = Spec.model_validate(server.spec)
    except ValidationError as error:
        raise ManifestError(_fault(error)) from None
    _check_source(spec)
    _check_rollout(spec)
    return server.model_copy(update={"spec": spec})


def read_live(document: Mapping[str, Any]) -> InferenceServer:
    """The server that the API server holds: what it adds to a manifest is left out. Raises ManifestError."""
    metadata = {key: document["metadata"][key] for key in Metadata.model_fields if key in document["metadata"]}
    return read_manifest({**{key: document.get(key) for key in ("apiVersion", "kind", "spec")}, "metadata": metadata})


def to_runtime_config(server: InferenceServer, **pod_settings: Any) -> RuntimeConfig:
    """What `plimsoll serve` is told for this server; `pod_settings` are those that no manifest has, such as `port`.

    Without a served name the object's own name is used. `model` among the pod settings is where the pod finds the
    model; without it the source must mean something on this machine. Raises ManifestError where fields contradict
    each other.
    """
    settings = {SPEC_PATHS[path]: value for path, value in _set_values(server.spec) if path in SPEC_PATHS}
    if server.spec.apiKeysSecretRef is not None and "api_key_file" not in pod_settings:
        settings.pop(SPEC_PATHS[KEYED_FIELD], None)
    if settings.get("served_model_name") is None:
        settings["served_model_name"] = server.name
    why_not = only_in_cluster(server.source) if "model" not in pod_settings else None
    if why_not is not None:
        raise ManifestError(f"spec.model.source: {why_not}")
    try:
        return RuntimeConfig(**{**settings, **pod_settings})
    except ValidationError as error:
        raise ManifestError(configuration_fault(error, spec_field_name)) from None


def fields_for_clusters(server: InferenceServer) -> list[str]:
    """The fields that this manifest sets and that mean something in a cluster only, as `spec.resources`."""
    return [f"spec.{path}" for path, _ in _set_values(server.spec) if path in {*WORKLOAD_FIELDS, KEYED_FIELD}]


def config_hash(server: InferenceServer) -> str:
    """A name for what the pods of this server are started for: it changes exactly when they must start again.

    Values that differ only in spelling (1000m and 1, Clamp and clamp, a default written out) are the same. Neither the
    operator's version nor its settings are in it, so that an upgrade of the operator restarts nothing.
    """
    values = server.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude_none=True)
    told = {key: value for key, value in values.items() if key not in NOT_IN_PODS}
    if "modelCache" in told:
        told["modelCache"] = True  # its size and class are the volume's affair
    subject = [server.name, server.metadata.annotations.get(ANNOTATION_RESTART), canonical_quantities(told)]
    return hashlib.sha256(json.dumps(subject, sort_keys=True).encode()).hexdigest()[:16]


def spec_field_name(setting: str) -> str:
    """How an author of manifests finds a setting."""
    return f"spec.{setting_extra(setting)['spec']}"


def _set_values(group: BaseModel, prefix: str = "") -> list[tuple[str, Any]]:
    """(path, value) of every field of the contract and the workload that the manifest gives."""
    values: list[tuple[str, Any]] = []
    for name, field in type(group).model_fields.items():
        path, value = f"{prefix}{field.alias or name}", getattr(group, name)
        if path in SPEC_PATHS or path in WORKLOAD_FIELDS:
            values += [(path, value)] if name in group.model_fields_set else []
        elif isinstance(value, BaseModel):
            values += _set_values(value, f"{path}.")
    return values


def _check_source(spec: Any) -> None:
    """What the source is, and what goes with it. Raises ManifestError."""
    text = spec.model.source
    if not has_scheme(text):
        raise ManifestError(f"spec.model.source: {text!r} has no scheme: write file:///path or package://name/file")
    try:
        source = parse_model_source(text)
    except ModelSourceError as error:
        raise ManifestError(f"spec.model.source: {error}") from None
    for path, value in (
        ("spec.model.revision", spec.model.revision),
        ("spec.model.tokenSecretRef", spec.model.tokenSecretRef),
        ("spec.modelCache", spec.modelCache),
    ):
        if value is not None and source.hub is None:
            raise ManifestError(f"{path} is for an hf:// source, but spec.model.source is {text}: leave it out")
    if spec.model.revision is not None and source.hub is not None and source.hub.revision is not None:
        raise ManifestError(
            f"spec.model.revision: {spec.model.revision} was given, but spec.model.source names revision "
            f"{source.hub.revision}: give one of them"
        )


def _check_rollout(spec: Any) -> None:
    """Raises ManifestError."""
    rollout = spec.rollout
    if rollout is not None and rollout.maxSurge == 0 and rollout.maxUnavailable == 0:
        raise ManifestError("spec.rollout: maxSurge 0 and maxUnavailable 0 let nothing be replaced: raise one of them")


def _fault(error: ValidationError) -> str:
    """One sentence for the first fault, unknown fields first, since a misspelt name explains a missing one."""
    faults = sorted(error.errors(include_url=False), key=lambda fault: fault["type"] != "extra_forbidden")
    fault = faults[0]
    path = _path(fault["loc"], error.title)
    match fault["type"]:
        case "extra_forbidden":
            return f"{path} is not a field of an InferenceServer: it is misspelt, or not built yet"
        case "missing":
            return f"{path} is required, but not given"
        case "value_error":
            return f"{path}: {str(fault['msg']).removeprefix('Value error, ')}"
    setting = SPEC_PATHS.get(path.removeprefix("spec."))
    if setting is not None:
        return refused_value(path, fault["input"], setting)
    return f"{path}: {fault['input']!r:.200} was given; {fault['msg']}"


def _path(location: Sequence[int | str], title: str) -> str:
    below = ["spec"] if title == Spec.__name__ else []
    return ".".join([*below, *map(str, location)])
