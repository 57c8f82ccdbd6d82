"""Manifests that must be refused, for whoever reads them: the API server by the CRD's rules, and ourselves.

Each row: what is laid over the smallest manifest (dotted path -> value), and what the sentence must name. The same rows
are asked of both, so that a rule cannot be in one place only.
"""

import copy
from typing import Any, Final

Change = dict[str, Any]

SMALLEST: Final[dict[str, Any]] = {
    "apiVersion": "plimsoll.dev/v1alpha1",
    "kind": "InferenceServer",
    "metadata": {"name": "tiny"},
    "spec": {"model": {"source": "file:///models/tiny"}},
}
HUB: Final = {"spec.model.source": "hf://org/name"}
VOLUME: Final = {"name": "v", "mountPath": "/v", "emptyDir": {}}

# id -> (changes, what both say, in whatever spelling of numbers)
WRONG: Final[dict[str, tuple[Change, tuple[str, ...]]]] = {
    "default-above-limit": (
        {"spec.maxOutput": {"default": 513, "limit": 512}},
        ("maxOutput.default", "513", "512"),
    ),
    "default-fills-context": (
        {"spec.contextLength": 512, "spec.maxOutput": {"default": 512}},
        ("maxOutput.default", "512", "contextLength"),
    ),
    "limit-fills-context": (
        {"spec.contextLength": 512, "spec.maxOutput": {"limit": 512}},
        ("maxOutput.limit", "512", "contextLength"),
    ),
    "context-above-kv": (
        {"spec.contextLength": 513, "spec.kvCache": {"maxTokens": 512}},
        ("contextLength", "513", "kvCache.maxTokens", "512"),
    ),
    "B18-context-zero": ({"spec.contextLength": 0}, ("contextLength",)),
    "B18-context-negative": ({"spec.contextLength": -1}, ("contextLength",)),
    "B18-context-text": ({"spec.contextLength": "4k"}, ("contextLength",)),
    "B18-default-zero": ({"spec.maxOutput.default": 0}, ("maxOutput.default",)),
    "slots-zero": ({"spec.runningSlots": 0}, ("runningSlots",)),
    "slots-many": ({"spec.runningSlots": 4097}, ("runningSlots", "4097|4,097")),
    "seconds-zero": ({"spec.queue.timeoutSeconds": 0}, ("queue.timeoutSeconds",)),
    "replicas-negative": ({"spec.replicas": -1}, ("replicas",)),
    "word": ({"spec.overBudget": "Drop"}, ("overBudget", "Drop|drop")),
    "sampling-word": ({"spec.sampling.defaults": "mine"}, ("sampling.defaults", "mine")),
    "drift-word": ({"spec.onBudgetDrift": "Ignore"}, ("onBudgetDrift", "Ignore")),
    "no-source": ({"spec.model": {"servedName": "x"}}, ("model", "source", "required")),
    "bare-path": ({"spec.model.source": "/models/tiny"}, ("model.source", "/models/tiny")),
    "unknown-scheme": ({"spec.model.source": "s3://bucket/x"}, ("model.source", "s3://bucket/x")),
    "climbing": ({"spec.model.source": "file:///models/../etc"}, ("model.source", "'..'")),
    "image-without-tag": ({"spec.model.source": "oci://image/path"}, ("model.source", "oci://image/path")),
    "hub-without-name": ({"spec.model.source": "hf://org"}, ("model.source", "hf://org")),
    "revision-of-a-file": ({"spec.model.revision": "v1"}, ("model.revision", "hf://", "file:///models/tiny")),
    "token-of-a-file": (
        {"spec.model.tokenSecretRef": {"name": "s", "key": "k"}},
        ("model.tokenSecretRef", "hf://", "file:///models/tiny"),
    ),
    "cache-of-a-file": ({"spec.modelCache": {"size": "1Gi"}}, ("modelCache", "hf://", "file:///models/tiny")),
    "two-revisions": (
        {"spec.model": {"source": "hf://org/name@v1", "revision": "v2"}},
        ("model.revision", "one of them"),
    ),
    "cache-size": ({**HUB, "spec.modelCache": {"size": "much"}}, ("modelCache.size",)),
    "rollout-0-0": ({"spec.rollout": {"maxSurge": 0, "maxUnavailable": 0}}, ("rollout", "maxSurge 0")),
    "rollout-percent": ({"spec.rollout": {"maxSurge": "50%"}}, ("rollout.maxSurge",)),
    "amount": ({"spec.resources": {"requests": {"cpu": "lots"}}}, ("resources.requests",)),
    "accelerator-without-owner": ({"spec.accelerator": {"resource": "gpu"}}, ("accelerator.resource",)),
    "env-name": ({"spec.env": [{"name": "a b", "value": "x"}]}, ("env",)),
    "env-without-value": ({"spec.env": [{"name": "A"}]}, ("env", "value or valueFrom")),
    "env-twice-a-value": (
        {"spec.env": [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}]},
        ("env", "value or valueFrom"),
    ),
    "env-two-places": (
        {
            "spec.env": [
                {
                    "name": "A",
                    "valueFrom": {
                        "secretKeyRef": {"name": "s", "key": "k"},
                        "configMapKeyRef": {"name": "s", "key": "k"},
                    },
                }
            ]
        },
        ("env", "exactly one"),
    ),
    "two-volumes-in-one": (
        {"spec.extraVolumes": [{**VOLUME, "secret": {"secretName": "s"}}]},
        ("extraVolumes", "exactly one"),
    ),
    "volume-of-nothing": ({"spec.extraVolumes": [{"name": "v", "mountPath": "/v"}]}, ("extraVolumes", "exactly one")),
    "volume-name-of-ours": (
        {"spec.extraVolumes": [{**VOLUME, "name": "plimsoll-tmp"}]},
        ("extraVolumes", "plimsoll-"),
    ),
    "volume-over-the-model": (
        {"spec.extraVolumes": [{**VOLUME, "mountPath": "/models/x"}]},
        ("extraVolumes", "/models"),
    ),
    "relative-mount": ({"spec.extraVolumes": [{**VOLUME, "mountPath": "v"}]}, ("extraVolumes", "mountPath")),
    "network-nobody": ({"spec.network": {"from": [{}]}}, ("network.from", "ipBlock")),
    "network-both": (
        {"spec.network": {"from": [{"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}]}},
        ("network.from", "ipBlock"),
    ),
    "startup-short": ({"spec.startupTimeoutSeconds": 1}, ("startupTimeoutSeconds",)),
    "B102-dot": ({"metadata.name": "phi-3.5"}, ("metadata.name",)),
    "B102-digit-first": ({"metadata.name": "7b"}, ("metadata.name",)),
    "B102-41-characters": ({"metadata.name": "a" * 41}, ("metadata.name",)),
    "B102-63-characters": ({"metadata.name": "a" * 63}, ("metadata.name",)),
    "B102-hyphen-last": ({"metadata.name": "a-"}, ("metadata.name",)),
}

# Unknown to the schema: a client that asks for strict checking is told, another loses the field.
UNKNOWN: Final[dict[str, Change]] = {
    "hostPath": {"spec.extraVolumes": [{**VOLUME, "hostPath": {"path": "/"}}]},
    "misspelt": {"spec.contextlength": 64},
    "not-built": {"spec.scheduling": {"preset": "Fair"}},
    "autoscaling": {"spec.autoscaling": {"min": 1}},
}

RIGHT: Final[dict[str, Change]] = {
    "smallest": {},
    "B102-40-characters": {"metadata.name": "a" * 40},
    "one-character": {"metadata.name": "a"},
    "default-is-limit": {"spec.maxOutput": {"default": 512, "limit": 512}},
    "one-below-context": {"spec.contextLength": 512, "spec.maxOutput": {"default": 511, "limit": 511}},
    "context-is-kv": {"spec.contextLength": 512, "spec.kvCache": {"maxTokens": 512}},
    "default-alone": {"spec.maxOutput": {"default": 2147483647}},
    "word-in-small-letters": {"spec.overBudget": "refuse"},
    "word-in-capitals": {"spec.overBudget": "REFUSE"},
    "scheme-in-capitals": {"spec.model.source": "FILE:///models/tiny"},
    "zero-replicas": {"spec.replicas": 0},
    "no-queue": {"spec.queue": {"maxWaiting": 0, "timeoutSeconds": 0.5}},
    "surge-alone-zero": {"spec.rollout": {"maxSurge": 0}},
    "hub-with-everything": {
        "spec.model": {
            "source": "hf://org/name",
            "revision": "v1",
            "tokenSecretRef": {"name": "s", "key": "k"},
        },
        "spec.modelCache": {"size": "1Gi"},
    },
    "amounts": {"spec.resources": {"requests": {"cpu": 1, "memory": "1.5Gi"}, "limits": {"example.com/gpu": "1"}}},
    "network-nobody": {"spec.network": {"from": []}},
    "affinity": {"spec.affinity": {"nodeAffinity": {"anything": ["is", "kept"]}}},
    "shared-memory": {"spec.extraVolumes": [{**VOLUME, "mountPath": "/dev/shm"}]},
}


def manifest(change: Change) -> dict[str, Any]:
    """The smallest manifest with these values laid over it."""
    document = copy.deepcopy(SMALLEST)
    for path, value in change.items():
        *parents, last = path.split(".")
        place = document
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = copy.deepcopy(value)
    return document


def names_all(message: str, expected: tuple[str, ...]) -> bool:
    """Whether the sentence has every part; `a|b` is either."""
    return all(any(word in message for word in part.split("|")) for part in expected)
