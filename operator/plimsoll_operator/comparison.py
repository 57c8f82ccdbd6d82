"""Whether a live object already is what is wanted of it, as the API server will have completed it. Pure.

Owns that comparison. In: the object as it would be applied, and the live one. Out: yes or no. It knows no kinds.
Invariant: what the API server adds (defaults, status, fields of other managers) and how it spells amounts makes no
difference; a field that was applied once and is wanted no longer does, through the hash in `ANNOTATION_APPLIED`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from plimsoll_operator.names import ANNOTATION_APPLIED
from plimsoll_operator.quantity import canonical_quantities

_LIST_KEYS: Final = ("mountPath", "uid", "name")
"""What names an item in the lists that server-side apply merges: volume mounts, owner references, all others."""


def sealed(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The object as it is applied: with a hash of itself among its annotations."""
    text = json.dumps(wanted, sort_keys=True, default=dict)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    metadata = wanted["metadata"]
    annotations = {**metadata.get("annotations", {}), ANNOTATION_APPLIED: digest}
    return {**wanted, "metadata": {**metadata, "annotations": annotations}}


def is_as_wanted(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether applying `wanted` (sealed) would change nothing."""
    return _covers(canonical_quantities(dict(live)), canonical_quantities(dict(wanted)))


def _covers(live: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        return isinstance(live, Mapping) and all(_has(live, key, value) for key, value in wanted.items())
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        return isinstance(live, Sequence) and not isinstance(live, str) and _covers_list(live, wanted)
    return bool(live == wanted)


def _has(live: Mapping[str, Any], key: str, wanted: Any) -> bool:
    """The API server leaves out some fields that are false or empty text."""
    if key not in live:
        return wanted is False or wanted == ""
    return _covers(live[key], wanted)


def _covers_list(live: Sequence[Any], wanted: Sequence[Any]) -> bool:
    for key in _LIST_KEYS:
        if wanted and all(isinstance(item, Mapping) and key in item for item in wanted):
            named = {item.get(key): item for item in live if isinstance(item, Mapping)}
            return all(item[key] in named and _covers(named[item[key]], item) for item in wanted)
    return len(live) == len(wanted) and all(map(_covers, live, wanted))
