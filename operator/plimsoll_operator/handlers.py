"""The watches: kopf's decorators, and nothing of ours in them but "this server is due".

Owns what is watched and how. In: a queue and the names of namespaces. Out: a kopf operator that adds keys. Invariants:
there are only event handlers, with which kopf writes nothing at all: no finalizer, no annotation, no progress, no
Kubernetes events; retries, back-off and concurrency are the queue's; every watch has time limits.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import kopf

from plimsoll_operator import names
from plimsoll_operator.desired import CHILD_KINDS
from plimsoll_operator.work_queue import Key

TellServer = Callable[[Key, str | None], None]
"""Told of a server and its resource version, None when it is gone."""
TellChild = Callable[[Key], None]

WATCHED: Final = tuple((version, names.plural_of(kind)) for version, kind in (*CHILD_KINDS, ("v1", "Pod")))
"""(group/version, plural) of what makes its server due when it changes or goes: what is deleted is back at once."""
ERROR_DELAYS: Final = (1, 2, 5, 10, 30)


def new_registry(tell_server: TellServer, tell_child: TellChild, kubeconfig: Path | None) -> kopf.OperatorRegistry:
    """Every handler. The first listing of a watch counts as events too, so a restart resumes by itself."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def log_in(**told: Any) -> kopf.ConnectionInfo | None:
        if kubeconfig is None:
            return kopf.login_with_service_account(**told)
        return kopf.login_with_kubeconfig(**told)

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)
    async def server_changed(event: Mapping[str, Any], meta: Mapping[str, Any], **_: Any) -> None:
        is_gone = event["type"] == "DELETED"
        tell_server((str(meta["namespace"]), str(meta["name"])), None if is_gone else str(meta["resourceVersion"]))

    async def child_changed(labels: Mapping[str, str], namespace: str | None, **_: Any) -> None:
        server = labels.get(names.LABEL_SERVER)
        if server is not None and namespace is not None:
            tell_child((namespace, server))

    for group_version, plural in WATCHED:
        kopf.on.event(group_version, plural, registry=registry, id=f"{plural}_changed")(child_changed)
    return registry


def new_settings() -> kopf.OperatorSettings:
    """Time limits for every request, no scan of the cluster, nothing posted, children by label alone."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.server_timeout = 270
    settings.watching.client_timeout = 300
    settings.watching.connect_timeout = 30
    settings.watching.inactivity_timeout = 70
    settings.networking.request_timeout = 30
    settings.queueing.error_delays = ERROR_DELAYS
    settings.persistence.finalizer = f"{names.GROUP}/never"  # no handler brings one; a foreign default would mislead
    for _, plural in WATCHED:
        settings.watching.label_selectors[plural] = names.LABEL_SERVER
    return settings


async def watch(registry: kopf.OperatorRegistry, namespaces: Sequence[str]) -> None:
    """Until a signal. Without namespaces: all of them."""
    await kopf.operator(
        registry=registry,
        settings=new_settings(),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=list(namespaces),
    )
