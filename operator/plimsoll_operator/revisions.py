"""Which pod template a Deployment gets: the wanted one, the running one, or the last accepted one. Pure.

Owns the record that the Deployment carries in its annotations: the template as it was applied, the last one with which
a replica became ready, and what the runtime refused. In: the wanted template, the live Deployment, the pods. Out: a
`Choice`. Three rules. The template that runs is kept to the letter while the config hash is the same, so that a newer
operator, which may render it differently, restarts nothing. A revision is accepted when one of its pods becomes ready.
A revision that was never ready, and in which the runtime ends with a sentence of its own, is rejected: the last
accepted template takes its place until the spec changes; where there is none, nothing can be rolled back to.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from plimsoll_operator import names
from plimsoll_operator.observed import Document, Observed, annotation_of, is_pod_ready, name_of

ENGINE_STOPPED: Final = "the engine stopped"
"""How the runtime begins its last sentence when it had started: a crash, and no fault of its configuration."""
CONFIGURATION_EXITS: Final = frozenset({1, 2})
_SPOKEN: Final = re.compile(r"^plimsoll (?:serve|fetch): (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Choice:
    """The template to run, and what to remember of it.

    rejected: the sentence with which the runtime refused the wanted template, or None.
    rolled_back: whether `template` is the last accepted one instead of the wanted one.
    accepted: whether a replica became ready with the wanted template.
    """

    template: Mapping[str, Any]
    annotations: Mapping[str, str]
    rejected: str | None = None
    rolled_back: bool = False
    accepted: bool = False


def choose(wanted: Mapping[str, Any], deployment: Document | None, pods: Iterable[Document]) -> Choice:
    """What the Deployment is to be told now."""
    record, wanted_hash, pods = _Record.of(deployment), hash_of(wanted), tuple(pods)
    serving = {revision_of(pod) for pod in pods if is_pod_ready(pod)}
    for known in (record.running, _template(wanted, wanted_hash, record, None)):
        if known is not None and hash_of(known) in serving:
            record = record.accept(known)
    rejected = record.rejected.get(wanted_hash)
    is_accepted = record.accepted is not None and hash_of(record.accepted) == wanted_hash
    if rejected is None and not is_accepted:
        rejected = refusal(wanted_hash, pods)
    if is_accepted:
        rejected = None
    template = _template(wanted, wanted_hash, record, rejected)
    return Choice(
        template=template,
        annotations=_annotations(template, record.accepted, wanted_hash, rejected),
        rejected=rejected,
        rolled_back=hash_of(template) != wanted_hash,
        accepted=is_accepted,
    )


def refusal(revision: str, pods: Iterable[Document]) -> str | None:
    """The sentence with which the runtime of a pod of this revision refused its configuration, or None."""
    for pod in sorted(pods, key=name_of):
        if revision_of(pod) == revision:
            for ended in _runtime_ends(pod):
                sentence = last_sentence(ended)
                if is_configuration_exit(ended) and sentence is not None:
                    return sentence
    return None


def is_configuration_exit(ended: Mapping[str, Any]) -> bool:
    """Whether a terminated container went because it cannot run as configured, and says so itself."""
    sentence = last_sentence(ended)
    return (
        ended.get("exitCode") in CONFIGURATION_EXITS
        and sentence is not None
        and not sentence.startswith(ENGINE_STOPPED)
    )


def last_sentence(ended: Mapping[str, Any]) -> str | None:
    """The runtime's own last sentence: the whole termination message, or the last line of ours when it is a log."""
    message = str(ended.get("message") or "").strip()
    spoken = _SPOKEN.findall(message)
    if spoken:
        return str(spoken[-1])
    return message if message and "\n" not in message else None


def revision_of(pod: Document) -> str | None:
    """The config hash that the pod was started for."""
    return annotation_of(pod, names.ANNOTATION_CONFIG_HASH)


def hash_of(template: Mapping[str, Any]) -> str:
    """The config hash of a pod template; "" for one that is not ours."""
    return str(((template.get("metadata") or {}).get("annotations") or {}).get(names.ANNOTATION_CONFIG_HASH, ""))


def live_hash(deployment: Document | None) -> str:
    """The config hash of what the Deployment is told to run now."""
    return "" if deployment is None else hash_of(deployment["spec"]["template"])


@dataclass(frozen=True, slots=True)
class _Record:
    """What the annotations say. `running` is the template as applied, when it is still the one that runs."""

    running: Mapping[str, Any] | None
    accepted: Mapping[str, Any] | None
    rejected: Mapping[str, str]

    @classmethod
    def of(cls, deployment: Document | None) -> "_Record":
        if deployment is None:
            return cls(None, None, {})
        applied = _parsed(deployment, names.ANNOTATION_TEMPLATE)
        running = applied if applied is not None and hash_of(applied) == live_hash(deployment) else None
        accepted = _parsed(deployment, names.ANNOTATION_ACCEPTED_TEMPLATE)
        if accepted is None and applied is not None:
            same = annotation_of(deployment, names.ANNOTATION_ACCEPTED_HASH) == hash_of(applied)
            accepted = applied if same else None
        rejected_hash = annotation_of(deployment, names.ANNOTATION_REJECTED_HASH)
        message = annotation_of(deployment, names.ANNOTATION_REJECTED_MESSAGE)
        return cls(running, accepted, {rejected_hash: message or ""} if rejected_hash else {})

    def accept(self, template: Mapping[str, Any]) -> "_Record":
        return _Record(self.running, template, self.rejected)


def _template(wanted: Mapping[str, Any], wanted_hash: str, record: _Record, rejected: str | None) -> Mapping[str, Any]:
    if rejected is not None and record.accepted is not None:
        return record.accepted
    for known in (record.running, record.accepted):
        if known is not None and hash_of(known) == wanted_hash:
            return known
    return wanted


def _annotations(
    template: Mapping[str, Any], accepted: Mapping[str, Any] | None, wanted_hash: str, rejected: str | None
) -> dict[str, str]:
    annotations = {names.ANNOTATION_TEMPLATE: _written(template)}
    if accepted is not None:
        annotations[names.ANNOTATION_ACCEPTED_HASH] = hash_of(accepted)
        if hash_of(accepted) != hash_of(template):
            annotations[names.ANNOTATION_ACCEPTED_TEMPLATE] = _written(accepted)
    if rejected is not None:
        annotations[names.ANNOTATION_REJECTED_HASH] = wanted_hash
        annotations[names.ANNOTATION_REJECTED_MESSAGE] = rejected
    return annotations


def _written(template: Mapping[str, Any]) -> str:
    return json.dumps(template, sort_keys=True, separators=(",", ":"))


def _parsed(deployment: Document, annotation: str) -> Mapping[str, Any] | None:
    text = annotation_of(deployment, annotation)
    try:
        template = None if text is None else json.loads(text)
    except ValueError:
        return None
    return template if isinstance(template, dict) else None


def _runtime_ends(pod: Document) -> list[Mapping[str, Any]]:
    """Every end of the runtime container that the pod remembers, the latest first."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    ends = []
    for container in statuses:
        if container["name"] == names.CONTAINER:
            ends += [(container.get(state) or {}).get("terminated") for state in ("state", "lastState")]
    return [ended for ended in ends if ended]


def choice_for(wanted: Mapping[str, Any], server: str, observed: Observed) -> Choice:
    """As `choose`, for the server's Deployment in a snapshot."""
    return choose(wanted, observed.child("Deployment", server), observed.pods)
