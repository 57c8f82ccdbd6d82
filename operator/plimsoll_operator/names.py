"""Every name that the operator writes into a cluster: kinds, labels, annotations, children, reasons.

Owns spellings only. Invariants: the selector is made of two labels that never change; no label value comes from a
user except the server's name, whose pattern makes it a legal label value, DNS label and prefix of every child's name.
"""

from typing import Final

GROUP: Final = "plimsoll.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "InferenceServer"
PLURAL: Final = "inferenceservers"
SINGULAR: Final = "inferenceserver"
SHORT_NAME: Final = "infsrv"
NAME_PATTERN: Final = r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$"
FIELD_MANAGER: Final = "plimsoll"
"""The one manager of every server-side apply. There is no finalizer: children go with their owner."""

APP_NAME: Final = "plimsoll"
MANAGED_BY: Final = "plimsoll-operator"
COMPONENT: Final = "inference-server"

LABEL_APP: Final = "app.kubernetes.io/name"
LABEL_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_SERVER: Final = f"{GROUP}/server"
"""On every child and every pod, with the server's name: what the operator lists and watches."""
LABEL_OPERATOR: Final = f"{GROUP}/operator"
"""On the operator's own pod, with the value "true": from where NetworkPolicies let budgets be read."""
LABEL_ROUTABLE: Final = f"{GROUP}/routable"
"""On pods; the Service alone selects on it, and a pod that must not be asked loses it."""
ROUTABLE: Final = "true"

ANNOTATION_CONFIG_HASH: Final = f"{GROUP}/config-hash"
"""On the pod template and so on every pod: what the pods were started for."""
ANNOTATION_APPLIED: Final = f"{GROUP}/applied"
"""On every child: a hash of the object as it was applied, so that a field which is no longer wanted is noticed."""
ANNOTATION_TEMPLATE: Final = f"{GROUP}/template"
"""On the Deployment: its pod template as applied (JSON), so that a newer operator restarts nothing."""
ANNOTATION_ACCEPTED_HASH: Final = f"{GROUP}/accepted-hash"
"""On the Deployment: the config hash of the last template with which a replica became ready."""
ANNOTATION_ACCEPTED_TEMPLATE: Final = f"{GROUP}/accepted-template"
"""On the Deployment: that template as applied (JSON), where it is not the current one."""
ANNOTATION_REJECTED_HASH: Final = f"{GROUP}/rejected-hash"
"""On the Deployment: the config hash that the runtime refused, until the spec changes."""
ANNOTATION_REJECTED_MESSAGE: Final = f"{GROUP}/rejected-message"
"""On the Deployment: the sentence with which it did."""
ANNOTATION_RESTART: Final = f"{GROUP}/restart"
"""On an InferenceServer, by a user: a new value restarts the pods, on the operator's present runtime image."""

CONTAINER: Final = "runtime"
FETCH_CONTAINER: Final = "fetch"
API_PORT_NAME: Final = "http"

CONDITION_READY: Final = "Ready"
CONDITION_ACCEPTED: Final = "Accepted"
CONDITION_AVAILABLE: Final = "Available"
CONDITION_PROGRESSING: Final = "Progressing"
CONDITION_BUDGET_CONSISTENT: Final = "BudgetConsistent"

# Reasons, in the order in which the checks ask.
REASON_INVALID_SPEC: Final = "InvalidSpec"
REASON_NAME_TAKEN: Final = "NameTaken"
REASON_WAITING_FOR_COLLECTION: Final = "WaitingForGarbageCollection"
REASON_APPLY_REFUSED: Final = "ApplyRefused"
REASON_CONFIGURATION_REJECTED: Final = "ConfigurationRejected"
REASON_SUSPENDED: Final = "Suspended"
REASON_SCALED_TO_ZERO: Final = "ScaledToZero"
REASON_POD_CREATION_REFUSED: Final = "PodCreationRefused"
REASON_IMAGE_PULL_FAILED: Final = "ImagePullFailed"
REASON_CONTAINER_CONFIG_FAILED: Final = "ContainerConfigFailed"
REASON_FETCH_FAILED: Final = "FetchFailed"
REASON_CRASH_LOOP: Final = "CrashLoop"
REASON_UNSCHEDULABLE: Final = "Unschedulable"
REASON_VOLUME_FAILED: Final = "VolumeFailed"
REASON_PROGRESS_DEADLINE: Final = "ProgressDeadlineExceeded"
REASON_UPDATING: Final = "Updating"
REASON_STARTING: Final = "Starting"
REASON_BUDGET_UNREAD: Final = "BudgetUnread"
REASON_BUDGET_DRIFT: Final = "BudgetDrift"
REASON_READY: Final = "Ready"

REASON_ACCEPTED: Final = "Accepted"
REASON_AWAITING_MODEL: Final = "AwaitingModel"
REASON_SERVING: Final = "Serving"
REASON_NO_READY_REPLICA: Final = "NoReadyReplica"
REASON_COMPLETE: Final = "Complete"
REASON_STALLED: Final = "Stalled"
REASON_CONSISTENT: Final = "Consistent"
REASON_NO_REPLICA: Final = "NoReplica"
REASON_ALL_REQUESTS_REFUSED: Final = "AllRequestsRefused"


def plural_of(kind: str) -> str:
    """As the paths of the API server have it, of every kind that the operator reads or writes."""
    return {"NetworkPolicy": "networkpolicies"}.get(kind, f"{kind.lower()}s")


def selector_labels(server: str) -> dict[str, str]:
    """What a Deployment selects its pods by. Immutable in Kubernetes, so never version, chart or user labels."""
    return {LABEL_APP: APP_NAME, LABEL_SERVER: server}


def child_labels(server: str) -> dict[str, str]:
    """On every child and pod. Labels of the server itself are not copied: tools that prune by label would follow."""
    return {
        **selector_labels(server),
        LABEL_INSTANCE: server,
        LABEL_MANAGED_BY: MANAGED_BY,
        LABEL_COMPONENT: COMPONENT,
    }


def model_cache_name(server: str) -> str:
    """The PersistentVolumeClaim of a server's model cache; every other child has the server's name."""
    return f"{server}-model-cache"


def endpoint(server: str, namespace: str, port: int) -> str:
    """Where clients in the cluster reach the server."""
    return f"http://{server}.{namespace}.svc:{port}"
