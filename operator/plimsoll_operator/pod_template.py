"""The pod of one InferenceServer: what runs in it, with which rights, and how Kubernetes asks it how it is.

Owns the pod template. In: a server and the operator's settings. Out: a dictionary for `spec.template`. It knows no
other object and has not seen the cluster. Invariants: flags and probes come from the contract; the pod satisfies the
"restricted" security standard, has no service account token and writes to /tmp and its model volume alone; no secret
value is in it; the last grace second comes after the last second of the runtime's own drain.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from plimsoll_operator import names
from plimsoll_operator.spec import InferenceServer, config_hash, to_runtime_config
from plimsoll_operator.workload import KEYS_PATH, MODEL_PATH, RESERVED_VOLUME_PREFIX, Accelerator
from plimsoll_runtime.contract import endpoints
from plimsoll_runtime.contract.command_line import render_flags
from plimsoll_runtime.contract.hub_source import HubSource, parse_hub_source
from plimsoll_runtime.contract.last_words import TERMINATION_LOG_VARIABLE
from plimsoll_runtime.contract.model_source import ModelSource

PRE_STOP_SECONDS: Final = 5
"""For Services and clients to notice that this pod is leaving, before it stops taking requests."""
LAST_SECONDS: Final = 10
"""After the drain: for error events of what was cut, and the end of the process."""
STARTUP_PERIOD_SECONDS: Final = 2
USER_ID: Final = 65532
KEYS_FILE: Final = "keys"
TERMINATION_LOG: Final = "/dev/termination-log"
CUDA_RESOURCES: Final = frozenset({"nvidia.com/gpu", "amd.com/gpu"})
"""Resources whose devices PyTorch calls cuda; such a pod must not fall back to its processors unseen."""

DEFAULT_OPERATOR_NAMESPACE: Final = "plimsoll-system"

MODEL_VOLUME: Final = f"{RESERVED_VOLUME_PREFIX}model"
TEMPORARY_VOLUME: Final = f"{RESERVED_VOLUME_PREFIX}tmp"
KEYS_VOLUME: Final = f"{RESERVED_VOLUME_PREFIX}api-keys"


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """What the operator itself was told, and its servers' manifests do not say.

    runtime_image: of servers that name none; a server keeps the image it was started with until its own pods change.
    operator_namespace, operator_labels: from where `/budget` is read, for the NetworkPolicy.
    hub_endpoint: where `hf://` is fetched from, None for the public hub.
    """

    runtime_image: str
    operator_namespace: str = DEFAULT_OPERATOR_NAMESPACE
    operator_labels: Mapping[str, str] = field(default_factory=lambda: {names.LABEL_OPERATOR: "true"})
    hub_endpoint: str | None = None


def pod_template(server: InferenceServer, settings: OperatorSettings) -> dict[str, Any]:
    """The template, with the config hash among its annotations. Raises ManifestError."""
    restart = server.metadata.annotations.get(names.ANNOTATION_RESTART)
    annotations = {names.ANNOTATION_CONFIG_HASH: config_hash(server)}
    if restart is not None:
        annotations[names.ANNOTATION_RESTART] = restart
    labels = {**names.child_labels(server.name), names.LABEL_ROUTABLE: names.ROUTABLE}
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": _pod_spec(server, settings)}


def grace_seconds(server: InferenceServer) -> int:
    """From the order to stop to the kill: the pre-stop pause, the drain, and last words."""
    spec = server.spec
    drain: float = spec.requestTimeoutSeconds if spec.drainSeconds is None else spec.drainSeconds
    return PRE_STOP_SECONDS + math.ceil(drain) + LAST_SECONDS


def _pod_spec(server: InferenceServer, settings: OperatorSettings) -> dict[str, Any]:
    spec, source = server.spec, server.source
    pod = {
        "serviceAccountName": server.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_seconds(server),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_runtime_container(server, settings)],
        "volumes": _volumes(server),
        "imagePullSecrets": _dump(spec.imagePullSecrets),
        "nodeSelector": spec.nodeSelector,
        "tolerations": _tolerations(server),
        "affinity": spec.affinity,
        "priorityClassName": spec.priorityClassName,
        "runtimeClassName": spec.runtimeClassName,
    }
    if source.hub is not None:
        pod["initContainers"] = [_fetch_container(server, settings, fetched_hub(server))]
    return {key: value for key, value in pod.items() if value not in (None, [], {})}


def _runtime_container(server: InferenceServer, settings: OperatorSettings) -> dict[str, Any]:
    spec = server.spec
    environment = {**_own_environment(), **{each.name: _dump(each) for each in spec.env or ()}}
    return {
        "name": names.CONTAINER,
        "image": _image(server, settings),
        "args": ["serve", *_flags(server)],
        "env": list(environment.values()),
        "ports": [{"name": names.API_PORT_NAME, "containerPort": endpoints.DEFAULT_PORT, "protocol": "TCP"}],
        "resources": _resources(server, spec.accelerator),
        **_probes(spec.startupTimeoutSeconds),
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}},
        **_confined(),
        "volumeMounts": _mounts(server),
    }


def _flags(server: InferenceServer) -> list[str]:
    pod_settings: dict[str, Any] = {"host": "0.0.0.0"}
    path = _model_path(server)
    if path is not None:
        pod_settings["model"] = str(path)
    if server.spec.apiKeysSecretRef is not None:
        pod_settings["api_key_file"] = f"{KEYS_PATH}/{KEYS_FILE}"
    accelerator = server.spec.accelerator
    if accelerator is not None and accelerator.resource in CUDA_RESOURCES:
        pod_settings["device"] = "cuda"
    return render_flags(to_runtime_config(server, **pod_settings))


def _model_path(server: InferenceServer) -> PurePosixPath | None:
    """Where the pod finds the model, when the source itself does not say."""
    source = server.source
    if source.hub is not None:
        hub = fetched_hub(server)
        return hub.model_path(fetch_folder(hub))
    return PurePosixPath(MODEL_PATH) / source.path if source.claim is not None or source.image is not None else None


def fetched_hub(server: InferenceServer) -> HubSource:
    """The hub source with the manifest's revision in it. Only for `hf://` sources."""
    revision = server.spec.model.revision
    text = server.spec.model.source
    return parse_hub_source(text if revision is None else f"{text}@{revision}")


def fetch_folder(hub: HubSource) -> PurePosixPath:
    """A folder for each source: replicas of two revisions share one cache while one replaces the other."""
    digest = hashlib.sha256(hub.text.encode()).hexdigest()[:8]
    return PurePosixPath(MODEL_PATH) / f"{hub.repository.replace('/', '--')}-{digest}"


def _fetch_container(server: InferenceServer, settings: OperatorSettings, hub: HubSource) -> dict[str, Any]:
    environment = _own_environment()
    token = server.spec.model.tokenSecretRef
    if token is not None:
        environment["HF_TOKEN"] = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": _dump(token)}}
    if settings.hub_endpoint is not None:
        environment["HF_ENDPOINT"] = {"name": "HF_ENDPOINT", "value": settings.hub_endpoint}
    return {
        "name": names.FETCH_CONTAINER,
        "image": _image(server, settings),
        "args": ["fetch", f"--source={hub.text}", f"--into={fetch_folder(hub)}"],
        "env": list(environment.values()),
        "resources": _resources(server, None),  # a quota that asks for limits asks every container
        **_confined(),
        "volumeMounts": [{"name": TEMPORARY_VOLUME, "mountPath": "/tmp"}, _model_mount(read_only=False)],
    }


def _image(server: InferenceServer, settings: OperatorSettings) -> str:
    return settings.runtime_image if server.spec.image is None else str(server.spec.image)


def _own_environment() -> dict[str, dict[str, Any]]:
    """What every container of ours needs, by name. The user id has no entry in passwd; libraries ask for its name."""
    values = {"HOME": "/tmp", "LOGNAME": "plimsoll", TERMINATION_LOG_VARIABLE: TERMINATION_LOG}
    return {name: {"name": name, "value": value} for name, value in values.items()}


def _confined() -> dict[str, Any]:
    """The rights of a container, and where it leaves its last sentence."""
    return {
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _resources(server: InferenceServer, accelerator: Accelerator | None) -> dict[str, Any]:
    resources = _dump(server.spec.resources) or {}
    if accelerator is not None:
        devices = {accelerator.resource: accelerator.count}
        resources = {kind: {**resources.get(kind, {}), **devices} for kind in ("requests", "limits")}
    return resources


def _probes(startup_timeout_seconds: int) -> dict[str, Any]:
    """Startup waits for the first token; readiness follows it; liveness does not care about load or drain."""
    return {
        "startupProbe": {
            **_asks(endpoints.READYZ),
            "periodSeconds": STARTUP_PERIOD_SECONDS,
            "failureThreshold": math.ceil(startup_timeout_seconds / STARTUP_PERIOD_SECONDS),
            "timeoutSeconds": 5,
        },
        "readinessProbe": {**_asks(endpoints.READYZ), "periodSeconds": 5, "failureThreshold": 2, "timeoutSeconds": 5},
        "livenessProbe": {**_asks(endpoints.LIVEZ), "periodSeconds": 10, "failureThreshold": 6, "timeoutSeconds": 10},
    }


def _asks(path: str) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": names.API_PORT_NAME, "scheme": "HTTP"}}


def _tolerations(server: InferenceServer) -> list[dict[str, Any]]:
    accelerator = server.spec.accelerator
    own = [] if accelerator is None else [{"key": accelerator.resource, "operator": "Exists", "effect": "NoSchedule"}]
    return own + (_dump(server.spec.tolerations) or [])


def _volumes(server: InferenceServer) -> list[dict[str, Any]]:
    spec = server.spec
    volumes: list[dict[str, Any]] = [{"name": TEMPORARY_VOLUME, "emptyDir": {}}]
    model = _model_volume(server, server.source)
    if model is not None:
        volumes.append({"name": MODEL_VOLUME, **model})
    if spec.apiKeysSecretRef is not None:
        items = [{"key": spec.apiKeysSecretRef.key, "path": KEYS_FILE}]
        volumes.append({"name": KEYS_VOLUME, "secret": {"secretName": spec.apiKeysSecretRef.name, "items": items}})
    for volume in _dump(spec.extraVolumes) or ():
        volumes.append({key: value for key, value in volume.items() if key not in ("mountPath", "readOnly")})
    return volumes


def _model_volume(server: InferenceServer, source: ModelSource) -> dict[str, Any] | None:
    if source.claim is not None:
        return {"persistentVolumeClaim": {"claimName": source.claim}}
    if source.image is not None:
        return {"image": {"reference": source.image, "pullPolicy": "IfNotPresent"}}
    if source.hub is None:
        return None
    if server.spec.modelCache is None:
        return {"emptyDir": {}}
    return {"persistentVolumeClaim": {"claimName": names.model_cache_name(server.name)}}


def _mounts(server: InferenceServer) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [{"name": TEMPORARY_VOLUME, "mountPath": "/tmp"}]
    if _model_volume(server, server.source) is not None:
        mounts.append(_model_mount(read_only=not _packs_experts(server)))
    if server.spec.apiKeysSecretRef is not None:
        mounts.append({"name": KEYS_VOLUME, "mountPath": KEYS_PATH, "readOnly": True})
    for volume in server.spec.extraVolumes or ():
        mounts.append({"name": volume.name, "mountPath": volume.mountPath, "readOnly": volume.readOnly})
    return mounts


def _packs_experts(server: InferenceServer) -> bool:
    """Whether the pod writes the pack of its experts beside a model that was fetched for it. Another's volume is not
    written to: there the pack is made once with `plimsoll pack`, or lies in the pod's temporary folder."""
    mode = server.spec.offload.mode
    return server.source.hub is not None and mode is not None and mode != "none"


def _model_mount(*, read_only: bool) -> dict[str, Any]:
    return {"name": MODEL_VOLUME, "mountPath": MODEL_PATH, "readOnly": read_only}


def _dump(value: Any) -> Any:
    """A workload part as the object that Kubernetes knows, without what was not set."""
    if isinstance(value, list):
        return [_dump(each) for each in value]
    return value if value is None else value.model_dump(mode="json", by_alias=True, exclude_unset=True)
