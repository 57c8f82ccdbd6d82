"""`desired(server, settings)`: every object that one InferenceServer means, from its spec alone. Pure.

Owns which children there are and what is in them, the pods excepted (pod_template). In: a server and the operator's
settings. Out: complete objects for server-side apply, in the order in which they are to be applied. It has not seen
the cluster. Invariants: the same input gives the same objects; each has the server's labels and, when the server has
a uid, a controller owner reference.
"""

from typing import Any, Final
from urllib.parse import urlsplit

from plimsoll_operator import names
from plimsoll_operator.pod_template import (
    DEFAULT_OPERATOR_NAMESPACE,
    OperatorSettings,
    grace_seconds,
    pod_template,
)
from plimsoll_operator.spec import InferenceServer
from plimsoll_runtime.contract.endpoints import DEFAULT_PORT

__all__ = ["CHILD_KINDS", "DEFAULT_OPERATOR_NAMESPACE", "OperatorSettings", "desired"]

CHILD_KINDS: Final[tuple[tuple[str, str], ...]] = (
    ("v1", "ServiceAccount"),
    ("v1", "PersistentVolumeClaim"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("v1", "Service"),
    ("policy/v1", "PodDisruptionBudget"),
    ("apps/v1", "Deployment"),
)
"""(apiVersion, kind) of every child there can be, in the order of applying: what `cluster` lists for a snapshot."""

API_VERSIONS: Final = {kind: api_version for api_version, kind in CHILD_KINDS}
DNS_PORT: Final = 53
HTTPS_PORT: Final = 443
FETCH_SECONDS: Final = 3600
"""What a rollout is given for fetching a model before it counts as stalled; it goes on regardless."""


def desired(server: InferenceServer, settings: OperatorSettings) -> tuple[dict[str, Any], ...]:
    """All children. Raises ManifestError where the spec contradicts itself."""
    objects = [
        _object(server, "ServiceAccount", automountServiceAccountToken=False),
        *_model_cache(server),
        _object(server, "NetworkPolicy", spec=_network_policy(server, settings)),
        _object(server, "Service", spec=_service(server)),
        *_disruption_budget(server),
        _object(server, "Deployment", spec=_deployment(server, settings)),
    ]
    return tuple(objects)


def _object(server: InferenceServer, kind: str, *, name: str | None = None, **content: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": server.name if name is None else name}
    if server.metadata.namespace is not None:
        metadata["namespace"] = server.metadata.namespace
    metadata["labels"] = names.child_labels(server.name)
    if server.metadata.uid is not None:
        metadata["ownerReferences"] = [_owner(server, server.metadata.uid)]
    return {"apiVersion": API_VERSIONS[kind], "kind": kind, "metadata": metadata, **content}


def _owner(server: InferenceServer, uid: str) -> dict[str, Any]:
    """With it the garbage collector deletes the child after its server, whether the operator runs or not."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": server.name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _model_cache(server: InferenceServer) -> list[dict[str, Any]]:
    cache = server.spec.modelCache
    if cache is None:
        return []
    spec = {"accessModes": [cache.accessMode], "resources": {"requests": {"storage": cache.size}}}
    if cache.storageClassName is not None:
        spec["storageClassName"] = cache.storageClassName
    return [_object(server, "PersistentVolumeClaim", name=names.model_cache_name(server.name), spec=spec)]


def _service(server: InferenceServer) -> dict[str, Any]:
    port = {"name": names.API_PORT_NAME, "port": DEFAULT_PORT, "protocol": "TCP", "targetPort": names.API_PORT_NAME}
    selector = {**names.selector_labels(server.name), names.LABEL_ROUTABLE: names.ROUTABLE}
    return {"type": "ClusterIP", "selector": selector, "ports": [port]}


def _disruption_budget(server: InferenceServer) -> list[dict[str, Any]]:
    """None for one replica: it would make its node impossible to drain."""
    if server.replicas < 2:
        return []
    selector = {"matchLabels": names.selector_labels(server.name)}
    return [_object(server, "PodDisruptionBudget", spec={"maxUnavailable": 1, "selector": selector})]


def _network_policy(server: InferenceServer, settings: OperatorSettings) -> dict[str, Any]:
    peers = server.spec.network.from_
    everybody: list[dict[str, Any]] = [{"namespaceSelector": {}}]
    given = [peer.model_dump(mode="json", by_alias=True, exclude_unset=True) for peer in peers or ()]
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": settings.operator_namespace}},
        "podSelector": {"matchLabels": dict(settings.operator_labels)},
    }
    sources = [*(everybody if peers is None else given), operator]
    return {
        "podSelector": {"matchLabels": names.selector_labels(server.name)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": sources, "ports": [{"port": DEFAULT_PORT, "protocol": "TCP"}]}],
        "egress": [{"ports": _egress_ports(server, settings)}],
    }


def _egress_ports(server: InferenceServer, settings: OperatorSettings) -> list[dict[str, Any]]:
    """Names, and the hub where the model is fetched from it."""
    ports = [{"port": DNS_PORT, "protocol": protocol} for protocol in ("UDP", "TCP")]
    if server.source.hub is not None:
        ports.append({"port": _hub_port(settings.hub_endpoint), "protocol": "TCP"})
    return ports


def _hub_port(endpoint: str | None) -> int:
    if endpoint is None:
        return HTTPS_PORT
    address = urlsplit(endpoint)
    if address.port is not None:
        return address.port
    return 80 if address.scheme == "http" else HTTPS_PORT


def _deployment(server: InferenceServer, settings: OperatorSettings) -> dict[str, Any]:
    surge, unavailable = _replacement(server)
    fetching = FETCH_SECONDS if server.source.hub is not None else 0
    return {
        "replicas": 0 if server.spec.suspend else server.replicas,
        "selector": {"matchLabels": names.selector_labels(server.name)},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable},
        },
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": server.spec.startupTimeoutSeconds + grace_seconds(server) + fetching,
        "template": pod_template(server, settings),
    }


def _replacement(server: InferenceServer) -> tuple[int, int]:
    """(surge, unavailable). A new pod that needs what the old one holds must come after it, not before.

    Where only one of both is given and is 0, the other becomes 1, since 0 and 0 would replace nothing.
    """
    spec, rollout = server.spec, server.spec.rollout
    exclusive = spec.modelCache is not None and spec.modelCache.accessMode == "ReadWriteOnce"
    surge, unavailable = (0, 1) if spec.accelerator is not None or exclusive else (1, 0)
    if rollout is None or (rollout.maxSurge is None and rollout.maxUnavailable is None):
        return surge, unavailable
    given_surge, given_unavailable = rollout.maxSurge, rollout.maxUnavailable
    if given_surge is None:
        return (1 if given_unavailable == 0 else surge), given_unavailable
    if given_unavailable is None:
        return given_surge, (1 if given_surge == 0 else unavailable)
    return given_surge, given_unavailable
