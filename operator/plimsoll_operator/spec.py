"""The `InferenceServer` manifest, built from the contract, and what it means as a `RuntimeConfig`.

Owns the shape of a manifest: which setting lies at which path below `spec.` is said by the contract itself
(`json_schema_extra["spec"]`), so types, bounds and defaults are written once. In: a parsed YAML document. Out: an
`InferenceServer`, then a `RuntimeConfig`. It opens no file and talks to no cluster. A fault is a `ManifestError`
whose text is one sentence that names the field. Invariant: what a manifest does not set stays not set.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from plimsoll_runtime.contract.config import RuntimeConfig, setting_extra
from plimsoll_runtime.contract.model_source import ModelSourceError, has_scheme, parse_model_source
from plimsoll_runtime.contract.wording import configuration_fault, refused_value

API_VERSION: Final = "plimsoll.dev/v1alpha1"
KIND: Final = "InferenceServer"
NAME_PATTERN: Final = r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$"

SPEC_PATHS: Final[Mapping[str, str]] = {
    spec: name for name in RuntimeConfig.model_fields if (spec := setting_extra(name)["spec"]) is not None
}
"""`contextLength` -> `context_length`, `maxOutput.default` -> `max_output_default`, ..."""

STRICT: Final = ConfigDict(frozen=True, extra="forbid", strict=True)
"""As the API server reads a manifest: unknown fields are refused, and "8" is no number."""


class ManifestError(ValueError):
    """The document is not an InferenceServer that can be run; the text is one sentence for its author."""


class Metadata(BaseModel):
    """The part of a Kubernetes object's metadata that a manifest may set."""

    model_config = STRICT

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    namespace: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


def _group(name: str, prefix: str, own_fields: Mapping[str, Any]) -> Any:
    """The model of everything below `spec.<prefix>`: settings of the contract, and groups of them."""
    fields: dict[str, Any] = dict(own_fields)
    for path, setting in SPEC_PATHS.items():
        key, _, deeper = path.removeprefix(prefix).partition(".")
        if not path.startswith(prefix) or key in fields:
            continue
        if deeper:
            group = _group(f"{name}{key[0].upper()}{key[1:]}", f"{prefix}{key}.", {})
            required = any(field.is_required() for field in group.model_fields.values())
            fields[key] = (group, ... if required else group())
        else:
            info = copy.copy(RuntimeConfig.model_fields[setting])
            fields[key] = (info.annotation, info)
    return create_model(name, __config__=STRICT, **fields)


Spec: Final = _group(
    "InferenceServerSpec",
    "",
    {"replicas": (Annotated[int, Field(ge=0, le=2**31 - 1, description="Copies of the server.")], 1)},
)


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
    def replicas(self) -> int:
        return int(self.spec.replicas)


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
    return server.model_copy(update={"spec": spec})


def to_runtime_config(server: InferenceServer, **pod_settings: Any) -> RuntimeConfig:
    """What `plimsoll serve` is told for this server; `pod_settings` are those that no manifest has, such as `port`.

    Without a served name the object's own name is used. Raises ManifestError where fields contradict each other.
    """
    settings = {SPEC_PATHS[path]: value for path, value in _set_values(server.spec)}
    _check_source(settings["model"])
    if settings.get("served_model_name") is None:
        settings["served_model_name"] = server.name
    try:
        return RuntimeConfig(**settings, **pod_settings)
    except ValidationError as error:
        raise ManifestError(configuration_fault(error, spec_field_name)) from None


def spec_field_name(setting: str) -> str:
    """How an author of manifests finds a setting."""
    return f"spec.{setting_extra(setting)['spec']}"


def _set_values(group: BaseModel, prefix: str = "") -> list[tuple[str, Any]]:
    """(path, value) of every setting of the contract that the manifest gives."""
    values: list[tuple[str, Any]] = []
    for key in type(group).model_fields:
        path, value = f"{prefix}{key}", getattr(group, key)
        if isinstance(value, BaseModel):
            values += _set_values(value, f"{path}.")
        elif path in SPEC_PATHS and key in group.model_fields_set:
            values.append((path, value))
    return values


def _check_source(source: str) -> None:
    if not has_scheme(source):
        raise ManifestError(f"spec.model.source: {source!r} has no scheme: write file:///path or package://name/file")
    try:
        parse_model_source(source)
    except ModelSourceError as error:
        raise ManifestError(f"spec.model.source: {error}") from None


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
    setting = SPEC_PATHS.get(path.removeprefix("spec."))
    if setting is not None:
        return refused_value(path, fault["input"], setting)
    return f"{path}: {fault['input']!r} was given; {fault['msg']}"


def _path(location: Sequence[int | str], title: str) -> str:
    below = ["spec"] if title == Spec.__name__ else []
    return ".".join([*below, *map(str, location)])
