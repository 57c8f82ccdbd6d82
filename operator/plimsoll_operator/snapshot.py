"""Reads what surrounds one server into an `Observed`.

Owns which objects are read for a snapshot. In: a server, the objects that it wants, a cluster, readings of replicas.
Out: `Observed`. It writes nothing. Invariant: everything is read anew; nothing is taken from a watch's memory.
"""

from collections.abc import Sequence
from typing import Any

from plimsoll_operator import names
from plimsoll_operator.cluster import CHILDREN, POD, Cluster, Json, Kind
from plimsoll_operator.observed import Observed, is_pod_ready, name_of
from plimsoll_operator.replica_readings import ReplicaReadings
from plimsoll_operator.spec import InferenceServer


def observe(
    cluster: Cluster,
    readings: ReplicaReadings,
    server: InferenceServer,
    wanted: Sequence[dict[str, Any]],
    live: Json,
) -> Observed:
    """The snapshot; `live` is the server's own object. Raises ApiFault."""
    selector = f"{names.LABEL_SERVER}={server.name}"
    pods = cluster.list_all(POD, server.namespace, labelSelector=selector)
    answers = readings.refresh((server.namespace, server.name), pods)
    return Observed(
        children=(*_children(cluster, server, wanted, selector),),
        pods=tuple(pods),
        events=_events(cluster, server, pods),
        budgets=answers.budgets,
        request_counts=answers.counts,
        previous_status=live.get("status") or {},
    )


def _children(cluster: Cluster, server: InferenceServer, wanted: Sequence[dict[str, Any]], selector: str) -> list[Json]:
    """Those with the label, and whatever else has a name that this server wants."""
    found = [each for kind in CHILDREN for each in cluster.list_all(kind, server.namespace, labelSelector=selector)]
    known = {(each["kind"], name_of(each)) for each in found}
    for each in wanted:
        if (each["kind"], name_of(each)) not in known:
            stranger = cluster.read(Kind(each["apiVersion"], each["kind"]), server.namespace, name_of(each))
            found += [] if stranger is None else [stranger]
    return found


def _events(cluster: Cluster, server: InferenceServer, pods: Sequence[Json]) -> tuple[Json, ...]:
    """Asked for only while a pod is not ready: they explain what its status does not."""
    if not pods or all(is_pod_ready(pod) for pod in pods):
        return ()
    about = {("Pod", name_of(pod)) for pod in pods} | {("PersistentVolumeClaim", names.model_cache_name(server.name))}
    events = cluster.warnings(server.namespace)
    return tuple(each for each in events if _subject(each) in about)


def _subject(event: Json) -> tuple[str, str]:
    involved = event.get("involvedObject") or {}
    return str(involved.get("kind")), str(involved.get("name"))
