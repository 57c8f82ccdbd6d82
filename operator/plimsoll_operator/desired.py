"""`desired(server, settings)`: every object that one InferenceServer means, from its spec alone. Pure.

Owns which children there are and what is in them, the pods excepted (pod_template). In: a server and the operator's
settings. Out: complete objects for server-side apply, in the order in which they are to be applied. It has not seen
the cluster. Invariants: the same input gives the same objects; each has the server's labels and, when the server has
a uid, a controller owner reference.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from plimsoll_operator.spec import InferenceServer

CHILD_KINDS: Final[tuple[tuple[str, str], ...]] = (
    ("v1", "ServiceAccount"),
    ("v1", "PersistentVolumeClaim"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("v1", "Service"),
    ("policy/v1", "PodDisruptionBudget"),
    ("apps/v1", "Deployment"),
)
"""(apiVersion, kind) of every child there can be, in the order of applying: what `cluster` lists for a snapshot."""


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """What the operator itself was told, and its servers' manifests do not say.

    runtime_image: of servers that name none; a server keeps the image it was started with until its own pods change.
    operator_namespace, operator_labels: from where `/budget` is read, for the NetworkPolicy.
    hub_endpoint: where `hf://` is downloaded from, None for the public hub.
    """

    runtime_image: str
    operator_namespace: str = "plimsoll-system"
    operator_labels: Mapping[str, str] = field(default_factory=dict)
    hub_endpoint: str | None = None


def desired(server: InferenceServer, settings: OperatorSettings) -> tuple[dict[str, Any], ...]:
    """All children. Raises ManifestError where the spec contradicts itself."""
    raise NotImplementedError
