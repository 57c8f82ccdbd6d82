"""Rules between the fields of a manifest, in the API server's own language, so that a wrong one is refused at apply.

Owns their text. Each stands beside the place it belongs to; the same rules in Python are in the contract
(`RuntimeConfig`), in `spec` and in `workload`, for manifests that no API server reads. In: nothing. Out: `RULES`.
Invariants: values that nobody set are never compared; a message names the field, what was given and the bound.
Source: the validation rules of CustomResourceDefinitions in the Kubernetes documentation, and CEL's string extensions.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from plimsoll_operator.names import NAME_PATTERN
from plimsoll_operator.workload import (
    PEER_FAULT,
    RESERVED_PATHS,
    RESERVED_VOLUME_PREFIX,
    VOLUME_NAME_FAULT,
    VOLUME_PATH_FAULT,
    VOLUME_SOURCE_FAULT,
    VOLUME_SOURCES,
)
from plimsoll_runtime.contract.config import PRESET_WEIGHTS
from plimsoll_runtime.contract.model_source import MANIFEST_PATTERN
from plimsoll_runtime.contract.values import spellings

Rule = dict[str, Any]

_IS_HUB: Final = "self.model.source.lowerAscii().startsWith('hf://')"


def _rule(rule: str, message: str, *, expression: str = "", field: str = "") -> Rule:
    """`message` is said where `expression` is missing or cannot be worked out."""
    written = {"rule": rule, "message": message, "reason": "FieldValueInvalid"}
    if expression:
        written["messageExpression"] = expression
    if field:
        written["fieldPath"] = field
    return written


def _compared(low: str, operator: str, high: str, words: str) -> Rule:
    """Two numbers below `spec` that are compared where both are set."""
    path_is_set = " && ".join(_is_set(low) + _is_set(high))
    text = f"{low} %d {words} {high} %d: lower spec.{low} or raise spec.{high}"
    return _rule(
        f"!({path_is_set}) || self.{low} {operator} self.{high}",
        f"{low} {words} {high}: lower spec.{low} or raise spec.{high}",
        expression=f"'{text}'.format([self.{low}, self.{high}])",
        field=f".{low}",
    )


def _is_set(path: str) -> list[str]:
    parts = path.split(".")
    return [f"has(self.{'.'.join(parts[: number + 1])})" for number in range(len(parts))]


def _only_for_hub(path: str) -> Rule:
    return _rule(
        f"!({' && '.join(_is_set(path))}) || {_IS_HUB}",
        f"{path} is for an hf:// source: leave it out",
        expression=f"'{path} is for an hf:// source, but model.source is %s: leave it out'.format([self.model.source])",
        field=f".{path}",
    )


def _one_of(fields: Sequence[str], message: str) -> Rule:
    return _rule(f"[{', '.join(f'has(self.{name})' for name in fields)}].filter(given, given).size() == 1", message)


def manifest_word(word: str) -> str:
    """A word of the contract as Kubernetes writes words: api-key is ApiKey."""
    return "".join(part.capitalize() for part in word.split("-"))


def word_rule(words: Sequence[str]) -> Rule:
    """A word is matched without regard to case, as it is on the command line."""
    listed = ", ".join(f"'{spelling}'" for word in words for spelling in spellings(word))
    shown = " or ".join(map(manifest_word, words))
    return _rule(
        f"self.lowerAscii() in [{listed}]",
        f"allowed is {shown}",
        expression=f"'%s was given, allowed is {shown}'.format([self])",
    )


def _means_nothing(field: str, shown: str, word: str, word_field: str, group: str) -> Rule:
    """A field of the group `group` that its word `word` would leave aside. `shown`: CEL for the text of its value."""
    text = f"{group}.{field} %s means nothing with {group}.{word_field} {manifest_word(word)}: leave out "
    text += f"spec.{group}.{field}, or choose another spec.{group}.{word_field}"
    return _rule(
        f"!has(self.{field}) || !has(self.{word_field}) || self.{word_field}.lowerAscii() != '{word}'",
        text.replace(" %s", ""),
        expression=f"'{text}'.format([{shown}])",
        field=f".{field}",
    )


def _num_levels(given: str, size: str) -> str:
    """CEL: how many levels a list makes, or its preset where it is not given."""
    interactive = "has(self.preset) && self.preset.lowerAscii() == 'interactive'"
    presets = f"{interactive} ? {len(PRESET_WEIGHTS['interactive'])} : {len(PRESET_WEIGHTS['fair'])}"
    return f"(has(self.{given}) ? {size} : {presets})"


_LEVELS: Final = _num_levels("thresholds", "size(self.thresholds) + 1"), _num_levels("weights", "size(self.weights)")
_UNORDERED: Final = "[0, 1, 2, 3, 4, 5, 6].filter(i, i + 1 < size(self) && self[i] >= self[i + 1])"
"""The places of a list of at most 8 whose number is not below the next one."""


def _quoted(pattern: str) -> str:
    """As a raw string of CEL."""
    return f"r'{pattern}'"


SPEC_RULES: Final[tuple[Rule, ...]] = (
    _compared("maxOutput.default", "<=", "maxOutput.limit", "exceeds"),
    _compared("maxOutput.default", "<", "contextLength", "leaves no room for a prompt within"),
    _compared("maxOutput.limit", "<", "contextLength", "leaves no room for a prompt within"),
    _compared("contextLength", "<=", "kvCache.maxTokens", "exceeds"),
    _only_for_hub("model.revision"),
    _only_for_hub("model.tokenSecretRef"),
    _only_for_hub("modelCache"),
    _rule(
        "!has(self.fairness) || !has(self.fairness.weights) || has(self.apiKeysSecretRef)",
        "fairness.weights means nothing without API keys: leave it out, or give spec.apiKeysSecretRef",
        expression="'fairness.weights %s means nothing without API keys: leave out spec.fairness.weights, or give "
        "spec.apiKeysSecretRef'.format([self.fairness.weights[0].tenant])",
        field=".fairness.weights",
    ),
)

RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    "spec": SPEC_RULES,
    "spec.model": (
        _rule(
            "!has(self.revision) || !self.source.contains('@')",
            "revision and source both name a revision: give one of them",
            field=".revision",
        ),
    ),
    "spec.model.source": (
        _rule(
            f"self.matches({_quoted(MANIFEST_PATTERN)})",
            "write file:///path, package://python_package/file, hf://org/name, pvc://claim/path or oci://image:tag/path",
            expression="'%s is no model source: write file:///path, package://python_package/file, hf://org/name, "
            "hf://org/name/FILE.gguf, pvc://claim/path or oci://image:tag/path'.format([self])",
        ),
        _rule(f"!self.matches({_quoted('(^|/)[.][.](/|$)')})", "the path must not contain '..'; name the place itself"),
    ),
    "spec.scheduling": (
        *(
            _means_nothing(field, shown, "fifo", "preset", "scheduling")
            for field, shown in (
                ("quantumTokens", "string(self.quantumTokens)"),
                ("thresholds", "self.thresholds"),
                ("weights", "self.weights"),
                ("maxWaitSeconds", "string(self.maxWaitSeconds)"),
            )
        ),
        _rule(
            f"!(has(self.thresholds) || has(self.weights)) || (has(self.preset) && self.preset.lowerAscii() == 'fifo') "
            f"|| {_LEVELS[0]} == {_LEVELS[1]}",
            "give one weight more than thresholds in spec.scheduling.weights; what is not given comes from the preset",
            expression="'scheduling.thresholds make %d levels, but scheduling.weights are for %d: give one weight more "
            "than thresholds in spec.scheduling.weights; what is not given comes from the preset'"
            f".format([{_LEVELS[0]}, {_LEVELS[1]}])",
            field=".weights",
        ),
    ),
    "spec.scheduling.thresholds": (
        _rule(
            f"{_UNORDERED}.size() == 0",
            "give increasing token counts",
            expression=f"{_UNORDERED}.map(i, 'scheduling.thresholds %d is followed by %d: give increasing token counts "
            "in spec.scheduling.thresholds'.format([self[i], self[i + 1]]))[0]",
        ),
    ),
    "spec.offload": (
        _rule(
            "!has(self.expertCache) || (has(self.mode) && self.mode.lowerAscii() != 'none')",
            "offload.expertCache means nothing with offload.mode None: leave out spec.offload.expertCache, or choose "
            "another spec.offload.mode",
            field=".expertCache",
        ),
    ),
    "spec.fairness": (_means_nothing("weights", "self.weights[0].tenant", "none", "by", "fairness"),),
    "spec.fairness.weights": (
        _rule(
            "self.all(each, self.exists_one(other, other.tenant.startsWith(each.tenant)))",
            "name each tenant once, by more digits where two begin alike",
            expression="self.filter(each, !self.exists_one(other, other.tenant.startsWith(each.tenant)))"
            ".map(each, 'fairness.weights name the tenant %s more than once: name each one once, by more digits where "
            "two begin alike, in spec.fairness.weights'.format([each.tenant]))[0]",
        ),
    ),
    "spec.rollout": (
        _rule(
            "!(has(self.maxSurge) && has(self.maxUnavailable) && self.maxSurge == 0 && self.maxUnavailable == 0)",
            "maxSurge 0 and maxUnavailable 0 let nothing be replaced: raise one of them",
        ),
    ),
    "spec.env[]": (_one_of(("value", "valueFrom"), "give value or valueFrom, one of them"),),
    "spec.env[].valueFrom": (
        _one_of(
            ("secretKeyRef", "configMapKeyRef", "fieldRef"),
            "name exactly one of secretKeyRef, configMapKeyRef and fieldRef",
        ),
    ),
    "spec.extraVolumes[]": (
        _one_of(sorted(VOLUME_SOURCES), VOLUME_SOURCE_FAULT),
        _rule(f"!self.name.startsWith('{RESERVED_VOLUME_PREFIX}')", VOLUME_NAME_FAULT, field=".name"),
        _rule(
            f"!{list(RESERVED_PATHS)}.exists(path, (self.mountPath + '/').startsWith(path + '/'))",
            VOLUME_PATH_FAULT,
            field=".mountPath",
        ),
    ),
    "spec.network.from[]": (
        _rule(
            "has(self.ipBlock) ? !has(self.namespaceSelector) && !has(self.podSelector) "
            ": has(self.namespaceSelector) || has(self.podSelector)",
            PEER_FAULT,
        ),
    ),
}
"""Place ([] for an item of a list) -> its rules."""

NAME_RULE: Final = _rule(
    f"self.metadata.name.matches({_quoted(NAME_PATTERN)})",
    "metadata.name must be 1 to 40 characters: small letters, digits and hyphens, beginning with a letter and not "
    "ending with a hyphen",
    expression="'metadata.name %s has %d characters; it must be 1 to 40: small letters, digits and hyphens, beginning "
    "with a letter and not ending with a hyphen'.format([self.metadata.name, size(self.metadata.name)])",
)
"""At the root of the object: names of children and values of labels are made of it."""
