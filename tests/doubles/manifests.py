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
    "scheduling-word": ({"spec.scheduling.preset": "Random"}, ("scheduling.preset", "Random")),
    "quantum-zero": ({"spec.scheduling.quantumTokens": 0}, ("scheduling.quantumTokens",)),
    "quantum-many": ({"spec.scheduling.quantumTokens": 1_000_001}, ("scheduling.quantumTokens", "1000001|1,000,001")),
    "max-wait-zero": ({"spec.scheduling.maxWaitSeconds": 0}, ("scheduling.maxWaitSeconds",)),
    "thresholds-empty": ({"spec.scheduling.thresholds": []}, ("scheduling.thresholds",)),
    "thresholds-zero": ({"spec.scheduling.thresholds": [0]}, ("scheduling.thresholds",)),
    "thresholds-fall": (
        {"spec.scheduling": {"preset": "Interactive", "thresholds": [64, 1024, 512]}},
        ("scheduling.thresholds", "1024|1,024", "512", "increasing"),
    ),
    "thresholds-stand": (
        {"spec.scheduling": {"thresholds": [512, 512], "weights": [4, 2, 1]}},
        ("scheduling.thresholds", "512 is followed by 512"),
    ),
    "too-few-weights": (
        {"spec.scheduling": {"thresholds": [512, 2048], "weights": [7, 1]}},
        ("scheduling.weights", "make 3 levels", "for 2"),
    ),
    "thresholds-without-weights": (
        {"spec.scheduling.thresholds": [512, 2048]},
        ("scheduling.weights", "make 3 levels", "for 2", "from the preset"),
    ),
    "weights-without-thresholds": (
        {"spec.scheduling": {"preset": "INTERACTIVE", "weights": [7, 1]}},
        ("scheduling.weights", "make 4 levels", "for 2"),
    ),
    "weight-zero": ({"spec.scheduling.weights": [7, 0]}, ("scheduling.weights",)),
    "fifo-with-quantum": (
        {"spec.scheduling": {"preset": "Fifo", "quantumTokens": 64}},
        ("scheduling.quantumTokens", "64 means nothing", "fifo|Fifo", "scheduling.preset"),
    ),
    "fifo-with-thresholds": (
        {"spec.scheduling": {"preset": "fifo", "thresholds": [512, 1024]}},
        ("scheduling.thresholds", "512,1024 means nothing|[512, 1024] means nothing", "scheduling.preset"),
    ),
    "fifo-with-weights": (
        {"spec.scheduling": {"preset": "FIFO", "weights": [7, 1]}},
        ("scheduling.weights", "7,1 means nothing|[7, 1] means nothing", "scheduling.preset"),
    ),
    "fifo-with-max-wait": (
        {"spec.scheduling": {"preset": "Fifo", "maxWaitSeconds": 2.5}},
        ("scheduling.maxWaitSeconds", "2.5 means nothing", "scheduling.preset"),
    ),
    "fairness-word": ({"spec.fairness.by": "Team"}, ("fairness.by", "Team")),
    "tenant-is-a-key": (
        {"spec.fairness.weights": [{"tenant": "sk-12345678", "weight": 2}]},
        ("fairness.weights", "tenant"),
    ),
    "tenant-short": ({"spec.fairness.weights": [{"tenant": "1a2b3c4", "weight": 2}]}, ("fairness.weights", "tenant")),
    "tenant-weight-zero": (
        {"spec.fairness.weights": [{"tenant": "1a2b3c4d", "weight": 0}]},
        ("fairness.weights", "weight"),
    ),
    "tenant-twice": (
        {"spec.fairness.weights": [{"tenant": "1a2b3c4d", "weight": 2}, {"tenant": "1a2b3c4d", "weight": 3}]},
        ("fairness.weights", "1a2b3c4d"),
    ),
    "tenant-in-tenant": (
        {"spec.fairness.weights": [{"tenant": "1a2b3c4d5e", "weight": 2}, {"tenant": "1a2b3c4d", "weight": 3}]},
        ("fairness.weights", "1a2b3c4d more than once"),
    ),
    "weights-of-nobody": (
        {"spec.fairness": {"by": "None", "weights": [{"tenant": "1a2b3c4d", "weight": 2}]}},
        ("fairness.weights 1a2b3c4d|tenant_weights 1a2b3c4d", "means nothing", "fairness.by"),
    ),
    "weights-without-keys": (
        {"spec.fairness.weights": [{"tenant": "1a2b3c4d", "weight": 2}]},
        ("fairness.weights 1a2b3c4d|tenant_weights 1a2b3c4d", "means nothing without API keys", "apiKeysSecretRef"),
    ),
    "deadline-word": ({"spec.deadlines.onDeadline": "Retry"}, ("deadlines.onDeadline", "Retry")),
    "deadline-switch": ({"spec.deadlines.honourClient": "yes"}, ("deadlines.honourClient",)),
    "runaway-word": ({"spec.runaway.mode": "Kill"}, ("runaway.mode", "Kill")),
    "tool-calls-word": ({"spec.parsers.toolCalls": "Qwen"}, ("parsers.toolCalls", "Qwen")),
    "reasoning-word": ({"spec.parsers.reasoning": "Qwen"}, ("parsers.reasoning", "Qwen")),
    "runaway-bare-off": ({"spec.runaway.mode": False}, ("runaway.mode",)),
    "expert-cache-word": ({"spec.offload": {"mode": "Auto", "expertCache": "much"}}, ("offload.expertCache", "much")),
    "expert-cache-without-mode": ({"spec.offload.expertCache": "1Gi"}, ("offload.expertCache", "offload.mode")),
    "expert-cache-with-none": (
        {"spec.offload": {"mode": "None", "expertCache": "1Gi"}},
        ("offload.expertCache", "offload.mode"),
    ),
    "offload-word": ({"spec.offload.mode": "Disk"}, ("offload.mode", "Disk")),
    "paused-kv-word": ({"spec.offload.pausedKV": "much"}, ("offload.pausedKV", "much")),
    "paused-kv-negative": ({"spec.offload.pausedKV": -1}, ("offload.pausedKV", "-1")),
    "paused-kv-part-of-a-byte": ({"spec.offload.pausedKV": "500m"}, ("offload.pausedKV", "500m")),
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
    "not-built": {"spec.offload": {"liveSplit": True}},
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
    "scheduling-empty": {"spec.scheduling": {}, "spec.fairness": {}, "spec.deadlines": {}, "spec.runaway": {}},
    "scheduling-whole": {
        "spec.scheduling": {
            "preset": "Interactive",
            "quantumTokens": 64,
            "thresholds": [256, 1024],
            "weights": [4, 2, 1],
            "maxWaitSeconds": 30.5,
        }
    },
    "preset-s-number-of-thresholds": {"spec.scheduling": {"preset": "Interactive", "thresholds": [1, 2, 3]}},
    "preset-s-number-of-weights": {"spec.scheduling.weights": [3, 1]},
    "fifo": {"spec.scheduling.preset": "FIFO"},
    "fairness-whole": {
        "spec.fairness": {
            "by": "apikey",
            "weights": [{"tenant": "1a2b3c4d", "weight": 3}, {"tenant": "1a2b3c4e" * 8, "weight": 1000}],
        },
        "spec.apiKeysSecretRef": {"name": "keys", "key": "lines"},
    },
    "fairness-as-a-flag": {"spec.fairness.by": "api-key"},
    "fairness-none": {"spec.fairness.by": "None"},
    "deadlines": {"spec.deadlines": {"honourClient": False, "onDeadline": "Abort"}},
    "runaway-off": {"spec.runaway.mode": "Off"},
    "experts-on-disk": {"spec.offload": {"mode": "Experts", "expertCache": "1.5Gi", "pausedKV": "1Gi"}},
    "experts-where-they-fit": {"spec.offload.mode": "auto"},
    "experts-in-memory": {"spec.offload.mode": "None"},
    "paused-kv": {"spec.offload.pausedKV": "1.5Gi"},
    "paused-kv-bytes": {"spec.offload.pausedKV": 1048576},
    "paused-kv-none": {"spec.offload.pausedKV": "0"},
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
