"""Typed reading of a model's settings, from config.json or from GGUF metadata.

Owns the checks; knows no model. Every fault is a CheckpointError that names the file and the field. A value of null
counts as absent, as in Hugging Face files.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plimsoll_runtime.models.weights.errors import CheckpointError

MAX_SIZE = 2**31 - 1
MAX_LAYERS = 1024
MAX_CONV_TOKENS = 64
"""What a convolution before a state may see: more is a broken file."""


class Fields:
    """`source` is the file to name, `prefix` stands before every key in the file and in messages."""

    def __init__(self, source: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self.source = source
        self._values = values
        self._prefix = prefix

    def has(self, key: str) -> bool:
        return self._values.get(self._prefix + key) is not None

    def raw(self, key: str) -> Any:
        return self._values.get(self._prefix + key)

    def size(self, key: str, default: int | None = None, maximum: int = MAX_SIZE) -> int:
        """A whole number from 1 to `maximum`."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
            raise self.error(key, f"is {_shown(value)}, not a whole number from 1 to {maximum:,}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.error(key, f"is {_shown(value)}, not a number above 0")
        return float(value)

    def word(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.error(key, f"is {_shown(value)}, not a string")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"is {_shown(value)}, not true or false")
        return value

    def section(self, key: str) -> "Fields":
        """The object under `key`, empty when absent."""
        value = self._get(key, {})
        if not isinstance(value, dict):
            raise self.error(key, f"is {_shown(value)}, not an object")
        prefix = f"{self._prefix}{key}."
        return Fields(self.source, {prefix + name: item for name, item in value.items()}, prefix)

    def replaced(self, key: str, value: Any) -> "Fields":
        """The same with another value under `key`."""
        return Fields(self.source, {**self._values, self._prefix + key: value}, self._prefix)

    def require_multiple(self, key: str, of: str) -> None:
        """One size must be a whole number of times another."""
        if self.size(key) % self.size(of):
            raise self.error(key, f"is {self.size(key)}, not a multiple of {of} = {self.size(of)}")

    def require(self, key: str, *allowed: Any) -> None:
        """A field that may be absent, and otherwise must have one of the values that the decoder computes."""
        value = self.raw(key)
        if value is not None and value not in allowed:
            raise self.error(
                key, f"is {_shown(value)}, which is not supported; supported: {', '.join(map(str, allowed))}"
            )

    def refuse(self, *keys: str) -> None:
        for key in keys:
            if self.has(key):
                raise self.error(key, f"is {_shown(self.raw(key))}, which is not supported")

    def error(self, key: str, message: str) -> CheckpointError:
        return CheckpointError(f"{self.source}: {self._prefix}{key} {message}")

    def _get(self, key: str, default: Any) -> Any:
        value = self.raw(key)
        if value is None and default is None:
            raise self.error(key, "is missing")
        return default if value is None else value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
