"""Why a pod is not there or does not run, in the words of those who know: kubelet, scheduler, runtime. Pure.

Owns how pod states read to people. In: pods and events as the API server sends them. Out: a `Trouble` with a reason of
names.py and one sentence that begins with the pod's name. Invariants: the sentence of the same trouble stays the same
(no counters, no times), so that a status is not written again for each restart; the first trouble in the order below
is told, of the first pod by name.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from plimsoll_operator import names
from plimsoll_operator.observed import Document, is_pod_ready, is_terminating, name_of
from plimsoll_operator.revisions import last_sentence

IMAGE_REASONS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)
CONFIG_REASONS: Final = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreStartHookError"}
)
VOLUME_EVENTS: Final = frozenset({"FailedMount", "FailedAttachVolume", "ProvisioningFailed"})
MAX_WORDS: Final = 800
"""Of a foreign sentence; some errors carry whole answers of registries."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What keeps a pod from serving."""

    reason: str
    message: str


def pod_trouble(pods: Iterable[Document], events: Sequence[Document]) -> Trouble | None:
    """The first trouble of the pods that are not ready, or None."""
    waiting = [pod for pod in sorted(pods, key=name_of) if not is_pod_ready(pod) and not is_terminating(pod)]
    for pod in waiting:
        trouble = _container_trouble(pod) or _schedule_trouble(pod)
        if trouble is not None:
            return trouble
    return _volume_trouble(waiting, events)


def _container_trouble(pod: Document) -> Trouble | None:
    status = pod.get("status") or {}
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        where = f"pod {name_of(pod)}, container {container['name']}"
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason, message = str(waiting.get("reason", "")), _shortened(waiting.get("message"))
        if reason in IMAGE_REASONS:
            return Trouble(
                names.REASON_IMAGE_PULL_FAILED, f"{where}: image {container.get('image')}: {message or reason}"
            )
        if reason in CONFIG_REASONS:
            return Trouble(names.REASON_CONTAINER_CONFIG_FAILED, f"{where}: {message or reason}")
        ended = _failed_end(container)
        if ended is not None:
            fetches = container["name"] == names.FETCH_CONTAINER
            reason = names.REASON_FETCH_FAILED if fetches else names.REASON_CRASH_LOOP
            return Trouble(reason, f"{where}: {_end_in_words(ended)}")
    return None


def _failed_end(container: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The latest end that was not clean, of a container that has not become ready since."""
    if container.get("ready"):
        return None
    for state in ("state", "lastState"):
        ended: Mapping[str, Any] | None = (container.get(state) or {}).get("terminated")
        if ended is not None:
            return ended if ended.get("exitCode") != 0 else None
    return None


def _end_in_words(ended: Mapping[str, Any]) -> str:
    sentence = last_sentence(ended)
    if sentence is not None:
        return _shortened(sentence)
    if ended.get("reason") == "OOMKilled":
        return "killed for memory (OOMKilled): raise spec.resources.limits.memory, or lower what the model is given"
    lines = [line for line in str(ended.get("message") or "").splitlines() if line.strip()]
    last = f": {_shortened(lines[-1].strip())}" if lines else ""
    return f"ended with exit code {ended.get('exitCode')}{last}"


def _schedule_trouble(pod: Document) -> Trouble | None:
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            message = _shortened(condition.get("message")) or "no node was found yet"
            return Trouble(names.REASON_UNSCHEDULABLE, f"pod {name_of(pod)}: {message}")
    return None


def _volume_trouble(pods: Sequence[Document], events: Sequence[Document]) -> Trouble | None:
    """What the kubelet says only in events. A pod that has a running container has its volumes."""
    starting = {name_of(pod) for pod in pods if not _has_started(pod)}
    found = []
    for event in events:
        involved = event.get("involvedObject") or {}
        about_pod = involved.get("kind") == "Pod" and involved.get("name") in starting
        about_claim = involved.get("kind") == "PersistentVolumeClaim" and bool(starting)
        if event.get("reason") in VOLUME_EVENTS and (about_pod or about_claim):
            words = f"{involved['kind']} {involved['name']}: {_shortened(event.get('message'))}"
            found.append((str(event.get("lastTimestamp") or event.get("eventTime") or ""), words))
    return Trouble(names.REASON_VOLUME_FAILED, max(found)[1]) if found else None


def _has_started(pod: Document) -> bool:
    status = pod.get("status") or {}
    containers = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return any(not (container.get("state") or {}).get("waiting") for container in containers)


def _shortened(text: Any) -> str:
    words = " ".join(str(text or "").split())
    return words if len(words) <= MAX_WORDS else f"{words[:MAX_WORDS]}..."
