"""The fields of a manifest that only a cluster can honour: how pods are made, placed, replaced and reached.

Owns their names, types, bounds and defaults; the contract owns what the server itself is told. In: nothing. Out:
pydantic models and `WORKLOAD_FIELDS`, from which `spec` builds the manifest and `crd` the schema. It renders no object.
Invariants: every text, list and map has a bound, since the API server prices rules by it; there is no way to name a
path of the node (no hostPath); a default is never changed within a version of the API.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic.fields import FieldInfo

STRICT: Final = ConfigDict(frozen=True, extra="forbid", strict=True)
"""As the API server reads a manifest: unknown fields are refused, and "8" is no number."""

MODEL_PATH: Final = "/models"
KEYS_PATH: Final = "/etc/plimsoll"
RESERVED_PATHS: Final = (MODEL_PATH, KEYS_PATH, "/tmp")
RESERVED_VOLUME_PREFIX: Final = "plimsoll-"
MAX_TEXT: Final = 1024

QUANTITY_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?([numkMGTPE]|[KMGTPE]i)?$"
LABEL_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
DNS_PATTERN: Final = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
QUALIFIED_PATTERN: Final = r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
EXTENDED_RESOURCE_PATTERN: Final = (
    r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)

Name = Annotated[str, StringConstraints(pattern=DNS_PATTERN, max_length=253)]
Key = Annotated[str, StringConstraints(pattern=r"^[-._a-zA-Z0-9]+$", max_length=253)]
ShortText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TEXT)]
Quantity = Annotated[int, Field(ge=0)] | Annotated[str, StringConstraints(pattern=QUANTITY_PATTERN, max_length=32)]
QualifiedName = Annotated[str, StringConstraints(pattern=QUALIFIED_PATTERN, max_length=317)]
Labels = Annotated[
    dict[
        QualifiedName,
        Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", max_length=63)],
    ],
    Field(max_length=32),
]


class Part(BaseModel):
    """A group of fields below `spec`."""

    model_config = STRICT


class SecretKey(Part):
    """One key of a Secret in the server's namespace."""

    name: Annotated[Name, Field(description="Name of the Secret.")]
    key: Annotated[Key, Field(description="Key in the Secret.")]


class KeyOfObject(SecretKey):
    """One key of a Secret or ConfigMap."""

    optional: Annotated[bool, Field(description="Start without it when it is not there.")] = False


class FieldOfPod(Part):
    """A field of the pod, such as status.hostIP."""

    fieldPath: ShortText


class EnvSource(Part):
    """Exactly one place that a variable's value comes from."""

    secretKeyRef: KeyOfObject | None = None
    configMapKeyRef: KeyOfObject | None = None
    fieldRef: FieldOfPod | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise ValueError("name exactly one of secretKeyRef, configMapKeyRef and fieldRef")
        return self


class EnvVariable(Part):
    """An environment variable of the runtime, with a value or a place that it comes from."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=253)]
    value: Annotated[str, StringConstraints(max_length=32768)] | None = None
    valueFrom: EnvSource | None = None

    @model_validator(mode="after")
    def _one_value(self) -> Self:
        if (self.value is None) == (self.valueFrom is None):
            raise ValueError("give value or valueFrom, one of them")
        return self


class Resources(Part):
    """Requests and limits of the runtime container, without the accelerator."""

    requests: Annotated[dict[QualifiedName, Quantity], Field(max_length=16)] | None = None
    limits: Annotated[dict[QualifiedName, Quantity], Field(max_length=16)] | None = None


class Accelerator(Part):
    """Devices of one kind for each replica. Pods tolerate a taint named like the resource."""

    resource: Annotated[
        str,
        StringConstraints(pattern=EXTENDED_RESOURCE_PATTERN, max_length=317),
        Field(description="Extended resource, such as nvidia.com/gpu."),
    ]
    count: Annotated[int, Field(ge=1, le=64, description="Devices for each replica.")] = 1


class Toleration(Part):
    """As in a pod."""

    key: QualifiedName | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: Annotated[str, StringConstraints(max_length=63)] | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    tolerationSeconds: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None


class ObjectName(Part):
    """A reference by name in the server's namespace."""

    name: Name


class SecretVolume(Part):
    """Files from a Secret."""

    secretName: Name
    optional: bool = False


class ConfigMapVolume(Part):
    """Files from a ConfigMap."""

    name: Name
    optional: bool = False


class ClaimVolume(Part):
    """A PersistentVolumeClaim."""

    claimName: Name


class EmptyVolume(Part):
    """An empty folder that lives as long as the pod."""

    medium: Literal["Memory"] | None = None
    sizeLimit: Quantity | None = None


class ExtraVolume(Part):
    """A volume and where the runtime sees it. There is no hostPath: it opens the node to whoever writes manifests."""

    name: Annotated[str, StringConstraints(pattern=LABEL_PATTERN, max_length=63)]
    mountPath: Annotated[str, StringConstraints(pattern=r"^/[^:]+$", max_length=MAX_TEXT)]
    readOnly: bool = True
    secret: SecretVolume | None = None
    configMap: ConfigMapVolume | None = None
    persistentVolumeClaim: ClaimVolume | None = None
    emptyDir: EmptyVolume | None = None

    @model_validator(mode="after")
    def _is_ours_to_mount(self) -> Self:
        if len(VOLUME_SOURCES & self.model_fields_set) != 1:
            raise ValueError(VOLUME_SOURCE_FAULT)
        if self.name.startswith(RESERVED_VOLUME_PREFIX):
            raise ValueError(VOLUME_NAME_FAULT)
        if any(f"{self.mountPath}/".startswith(f"{path}/") for path in RESERVED_PATHS):
            raise ValueError(VOLUME_PATH_FAULT)
        return self


VOLUME_SOURCES: Final = frozenset({"secret", "configMap", "persistentVolumeClaim", "emptyDir"})
VOLUME_SOURCE_FAULT: Final = (
    "name exactly one of secret, configMap, persistentVolumeClaim and emptyDir; hostPath is not allowed"
)
VOLUME_NAME_FAULT: Final = f"names that begin with {RESERVED_VOLUME_PREFIX} are the operator's own"
VOLUME_PATH_FAULT: Final = f"nothing is mounted below {', '.join(RESERVED_PATHS)}"


class ModelCache(Part):
    """A PersistentVolumeClaim that keeps what hf:// has fetched. It goes with the server, or when this is removed."""

    size: Annotated[Quantity, Field(description="Of the volume: the model and room for the next one.")]
    storageClassName: Annotated[Name, Field(description="Not set: the cluster's default.")] | None = None
    accessMode: Annotated[
        Literal["ReadWriteOnce", "ReadWriteMany"],
        Field(description="ReadWriteOnce ties all replicas to one node, and one replica is replaced after the other."),
    ] = "ReadWriteOnce"


class Rollout(Part):
    """How replicas are replaced. Not set: 1 and 0; with an accelerator or a ReadWriteOnce cache, 0 and 1."""

    maxSurge: Annotated[int, Field(ge=0, le=1000, description="Replicas beyond spec.replicas meanwhile.")] | None = None
    maxUnavailable: (
        Annotated[int, Field(ge=0, le=1000, description="Replicas that may be missing meanwhile.")] | None
    ) = None


class LabelRequirement(Part):
    """As in a label selector."""

    key: QualifiedName
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: Annotated[list[Annotated[str, StringConstraints(max_length=63)]], Field(max_length=32)] | None = None


class LabelSelector(Part):
    """As in Kubernetes; an empty one selects everything."""

    matchLabels: Labels | None = None
    matchExpressions: Annotated[list[LabelRequirement], Field(max_length=16)] | None = None


class AddressBlock(Part):
    """Addresses in CIDR notation."""

    cidr: Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F:.]+/[0-9]{1,3}$", max_length=64)]
    except_: Annotated[
        list[Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F:.]+/[0-9]{1,3}$", max_length=64)]] | None,
        Field(alias="except", max_length=16),
    ] = None


class NetworkPeer(Part):
    """As in a NetworkPolicy: pods by namespace and label, or addresses."""

    namespaceSelector: LabelSelector | None = None
    podSelector: LabelSelector | None = None
    ipBlock: AddressBlock | None = None

    @model_validator(mode="after")
    def _names_somebody(self) -> Self:
        if not self.model_fields_set or (self.ipBlock is not None and len(self.model_fields_set) > 1):
            raise ValueError(PEER_FAULT)
        return self


PEER_FAULT: Final = "name ipBlock alone, or namespaceSelector, podSelector or both"


def _field(default: Any, description: str, alias: str | None = None) -> FieldInfo:
    info: FieldInfo = Field(default, description=description, alias=alias)
    return info


WORKLOAD_FIELDS: Final[Mapping[str, tuple[Any, FieldInfo]]] = {
    "model.revision": (
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/+-]*$", max_length=200)] | None,
        _field(None, "Branch, tag or commit of an hf:// source. Not set: the default branch at the time of fetching."),
    ),
    "model.tokenSecretRef": (SecretKey | None, _field(None, "The hub's token for an hf:// source.")),
    "replicas": (
        Annotated[int, Field(ge=0, le=2**31 - 1)],
        _field(1, "Copies of the server; an autoscaler writes it through the scale subresource. 0 stops serving."),
    ),
    "onBudgetDrift": (
        Literal["Warn", "Exclude"],
        _field("Warn", "A replica whose own limits differ from these is reported (Warn), or also not asked (Exclude)."),
    ),
    "suspend": (bool, _field(False, "Run no pods, keep everything else.")),
    "image": (
        Annotated[str, StringConstraints(pattern=r"^[^\s]+$", max_length=512)] | None,
        _field(None, "Image of the runtime. Not set: the operator's, as it was when the pods last changed."),
    ),
    "resources": (
        Resources | None,
        _field(None, "Requests and limits of each replica, which computes with as many threads as its limit of cores."),
    ),
    "accelerator": (Accelerator | None, _field(None, "Devices of each replica. Not set: processors alone.")),
    "nodeSelector": (Labels | None, _field(None, "Labels of the nodes to run on.")),
    "tolerations": (
        Annotated[list[Toleration], Field(max_length=32)] | None,
        _field(None, "Taints that do not matter, as in a pod."),
    ),
    "affinity": (
        dict[str, Any] | None,
        _field(None, "As in a pod; checked when the Deployment is written, and a fault is reported in Accepted."),
    ),
    "priorityClassName": (Name | None, _field(None, "As in a pod.")),
    "runtimeClassName": (Name | None, _field(None, "As in a pod; some accelerators need one.")),
    "env": (
        Annotated[list[EnvVariable], Field(max_length=64)] | None,
        _field(None, "Environment of the runtime, for its libraries; settings of the server are fields of this spec."),
    ),
    "imagePullSecrets": (
        Annotated[list[ObjectName], Field(max_length=16)] | None,
        _field(None, "Secrets for pulling the image."),
    ),
    "extraVolumes": (
        Annotated[list[ExtraVolume], Field(max_length=16)] | None,
        _field(None, "More volumes, each with its place. There is no hostPath."),
    ),
    "modelCache": (ModelCache | None, _field(None, "Keep what hf:// fetches beyond the life of a pod.")),
    "rollout": (Rollout | None, _field(None, "How replicas are replaced.")),
    "startupTimeoutSeconds": (
        Annotated[int, Field(ge=10, le=86_400)],
        _field(1800, "How long a replica may load its model before it is started again."),
    ),
    "apiKeysSecretRef": (
        SecretKey | None,
        _field(
            None,
            "API keys, one a line; a changed Secret is read again without a restart. Not set: no key is asked for.",
        ),
    ),
    "network.from": (
        Annotated[list[NetworkPeer], Field(max_length=32)] | None,
        _field(
            None,
            "Who reaches the API. Not set: every pod of the cluster. An empty list: nobody but the operator.",
            "from",
        ),
    ),
}
"""Path below `spec.` -> (type, description and default). What `plimsoll up` cannot honour, it names."""

NOT_IN_PODS: Final = frozenset({"replicas", "onBudgetDrift", "suspend", "rollout", "network"})
"""What changes nothing in a pod, and so restarts none; everything else in a spec does."""
