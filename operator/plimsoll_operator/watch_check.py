"""Whether what the watch tells is what the API server holds: a watch that died in silence is noticed here.

Owns that comparison. In: resource versions from the watch, and now and then a listing. Out: since when the watch has
not told of something. Pure but for the times it is given. Invariant: a listed version counts only while it is still
the listed one, so objects that change quickly never look like a stall.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Key = tuple[str, str]


@dataclass(slots=True)
class WatchCheck:
    """`seen`: the latest version of each server that the watch told of."""

    seen: dict[Key, str] = field(default_factory=dict)
    _untold: dict[Key, tuple[str, float]] = field(default_factory=dict)

    def told(self, key: Key, version: str | None) -> None:
        """None: the watch says that the server is gone."""
        if version is None:
            self.seen.pop(key, None)
        else:
            self.seen[key] = version
        if key in self._untold:  # a new dictionary: other threads read the old one
            self._untold = {other: since for other, since in self._untold.items() if other != key}

    def compare(self, listed: Mapping[Key, str], now: float) -> None:
        """What a fresh listing says. Called again and again."""
        untold = {}
        for key, version in listed.items():
            if self.seen.get(key) != version:
                before = self._untold.get(key)
                untold[key] = before if before is not None and before[0] == version else (version, now)
        self._untold = untold

    def lag_seconds(self, now: float) -> float:
        """For how long the oldest listed version has not been told; as of the latest listing."""
        return max((now - since for version, since in self._untold.values()), default=0.0)
