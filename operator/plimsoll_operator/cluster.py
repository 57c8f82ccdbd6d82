"""Everything that the operator does to a cluster, and the only user of the Kubernetes client.

Owns requests: reads into plain dictionaries, server-side apply under one field manager, deletions, statuses, events
and the Lease. It decides nothing. A refusal of the API server is an `ApiFault` with its own sentence; what does not
exist is None. Invariants: each request has a timeout; a deletion or a change names the uid it means, so a later object
of the same name is never hit; an object that was not seen before is applied without force, so what somebody else made
meanwhile is never taken over.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from plimsoll_operator import names
from plimsoll_operator.desired import CHILD_KINDS
from plimsoll_operator.observed import ObjectRef

REQUEST_TIMEOUT: Final = (5, 30)
"""Seconds to connect, and to wait for an answer."""
CONNECTIONS: Final = 16
MAX_EVENTS: Final = 500
APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"

Json = dict[str, Any]
CountWrite = Callable[[str, str], None]
"""Told (verb, kind) of each write."""


class ApiFault(Exception):
    """The API server refused, or could not be asked (status 0); the text is its own sentence."""

    def __init__(self, status: int, message: str, causes: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.causes = tuple(causes)

    @property
    def is_namespace_ending(self) -> bool:
        return "NamespaceTerminating" in self.causes

    @property
    def is_absence(self) -> bool:
        """The object, or the namespace that it was to be in, does not exist."""
        return self.status == 404

    @property
    def is_refusal(self) -> bool:
        """Asking again brings the same answer, unless something else changes."""
        return self.status in (400, 403, 409, 413, 422)


@dataclass(frozen=True, slots=True)
class Kind:
    """(apiVersion, kind), as in CHILD_KINDS."""

    api_version: str
    kind: str

    def path(self, namespace: str | None, name: str | None = None) -> str:
        """Without a namespace: of all of them."""
        root = "/api/v1" if self.api_version == "v1" else f"/apis/{self.api_version}"
        where = "" if namespace is None else f"/namespaces/{namespace}"
        return f"{root}{where}/{names.plural_of(self.kind)}" + ("" if name is None else f"/{name}")


SERVER: Final = Kind(names.API_VERSION, names.KIND)
POD: Final = Kind("v1", "Pod")
EVENT: Final = Kind("v1", "Event")
LEASE: Final = Kind("coordination.k8s.io/v1", "Lease")
CHILDREN: Final = tuple(Kind(*each) for each in CHILD_KINDS)


class Cluster:
    """One connection pool to one API server; may be used from several threads."""

    def __init__(self, api: client.ApiClient, count_write: CountWrite = lambda verb, kind: None) -> None:
        self._api = api
        self._count_write = count_write

    def read(self, kind: Kind, namespace: str, name: str) -> Json | None:
        """The live object, or None."""
        try:
            return self._ask("GET", kind.path(namespace, name))
        except ApiFault as fault:
            if fault.is_absence:
                return None
            raise

    def list_all(self, kind: Kind, namespace: str | None, **selectors: Any) -> list[Json]:
        """Every object that `labelSelector` and `fieldSelector` leave, each with its apiVersion and kind."""
        answer = self._ask("GET", kind.path(namespace), query=selectors)
        return [{**item, "apiVersion": kind.api_version, "kind": kind.kind} for item in answer["items"]]

    def openapi(self, api_version: str) -> Json:
        """What the API server serves of a group: schemas of its kinds."""
        return self._ask("GET", f"/openapi/v3/apis/{api_version}")

    def warnings(self, namespace: str) -> list[Json]:
        """The namespace's Warning events."""
        return self.list_all(EVENT, namespace, fieldSelector="type=Warning", limit=MAX_EVENTS)

    def apply(self, wanted: Mapping[str, Any], live_uid: str | None) -> None:
        """Server-side apply. `live_uid`: of the object as it was seen, None when there was none."""
        kind = Kind(wanted["apiVersion"], wanted["kind"])
        metadata = wanted["metadata"]
        body = {**wanted, "metadata": metadata if live_uid is None else {**metadata, "uid": live_uid}}
        force = "false" if live_uid is None else "true"
        query = {"fieldManager": names.FIELD_MANAGER, "force": force}
        self._write("apply", kind, kind.path(metadata["namespace"], metadata["name"]), "PATCH", body, APPLY, query)

    def delete(self, ref: ObjectRef) -> None:
        """What is gone already, or has another uid by now, is no fault."""
        kind = Kind(ref.api_version, ref.kind)
        body = {"preconditions": {"uid": ref.uid}, "propagationPolicy": "Background"}
        try:
            self._write("delete", kind, kind.path(ref.namespace, ref.name), "DELETE", body)
        except ApiFault as fault:
            if fault.status not in (404, 409):
                raise

    def set_label(self, ref: ObjectRef, label: str, value: str | None) -> None:
        """None takes the label away. An object that is gone has none."""
        kind = Kind(ref.api_version, ref.kind)
        body = {"metadata": {"uid": ref.uid, "labels": {label: value}}}
        query = {"fieldManager": names.FIELD_MANAGER}
        try:
            self._write("label", kind, kind.path(ref.namespace, ref.name), "PATCH", body, MERGE, query)
        except ApiFault as fault:
            if fault.status not in (404, 409):
                raise

    def write_status(self, server: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        """The whole status, by server-side apply, so that a field that is no longer said goes."""
        identity = {key: server["metadata"][key] for key in ("name", "namespace", "uid")}
        body = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": identity, "status": status}
        path = SERVER.path(identity["namespace"], identity["name"])
        query = {"fieldManager": names.FIELD_MANAGER, "force": "true"}
        self._write("status", SERVER, f"{path}/status", "PATCH", body, APPLY, query)

    def create(self, kind: Kind, document: Mapping[str, Any]) -> Json:
        return self._write("create", kind, kind.path(document["metadata"]["namespace"]), "POST", document)

    def replace(self, kind: Kind, document: Mapping[str, Any]) -> Json:
        """Fails with status 409 when the object is no longer the one that was read."""
        metadata = document["metadata"]
        return self._write("update", kind, kind.path(metadata["namespace"], metadata["name"]), "PUT", document)

    def _write(
        self,
        verb: str,
        kind: Kind,
        path: str,
        method: str,
        body: Mapping[str, Any],
        content_type: str = "application/json",
        query: Mapping[str, Any] | None = None,
    ) -> Json:
        self._count_write(verb, kind.kind)
        return self._ask(method, path, body=body, content_type=content_type, query=query)

    def _ask(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        content_type: str | None = None,
        query: Mapping[str, Any] | None = None,
    ) -> Json:
        headers = {"Accept": "application/json"} | ({} if content_type is None else {"Content-Type": content_type})
        content: Any = json.dumps(body, default=dict) if content_type == APPLY else body
        verb, url, headers, content, _ = self._api.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params=headers,
            body=content,
            auth_settings=["BearerToken"],
        )
        try:
            answer = self._api.call_api(verb, url, headers, content, _request_timeout=REQUEST_TIMEOUT)
            text = answer.read()
        except ApiException as error:
            raise _fault(error.status, error.body, str(error.reason)) from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiFault(0, f"the API server cannot be reached: {error}") from None
        if not 200 <= answer.status <= 299:
            raise _fault(answer.status, text, str(answer.reason))
        document: Json = json.loads(text)
        return document


def connect(kubeconfig: Path | None, count_write: CountWrite = lambda verb, kind: None) -> Cluster:
    """To the cluster of a file, or to the one in which this process is a pod. Raises ApiFault."""
    settings = client.Configuration()
    try:
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=settings)
        else:
            config.load_kube_config(config_file=str(kubeconfig), client_configuration=settings)
    except (config.ConfigException, OSError) as error:
        raise ApiFault(0, f"no cluster: {error}") from None
    settings.connection_pool_maxsize = CONNECTIONS
    return Cluster(client.ApiClient(settings), count_write)


def _fault(status: int, body: Any, reason: str) -> ApiFault:
    """Out of a Kubernetes Status object, where the answer is one."""
    try:
        told = json.loads(body)
        causes = [str(cause.get("reason")) for cause in (told.get("details") or {}).get("causes") or ()]
        return ApiFault(int(status), str(told.get("message") or reason), causes)
    except (TypeError, ValueError, AttributeError):
        return ApiFault(int(status or 0), reason)
