"""A JSON body as text, with parts that are JSON already and stand in it as they are.

Owns `RawJson`. In: JSON values. Out: one line of text. Python's own numbers cannot carry what a model wrote (1e400, or
an integer of 5,000 digits), so such a part never becomes a value.
"""

import json
import secrets
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RawJson:
    """Valid JSON, written into the body without being read."""

    text: str


def body_text(body: dict[str, Any]) -> str:
    """The body without white space; characters stay as they are."""
    raw: list[str] = []
    mark = secrets.token_hex(16)  # no text of the body has it

    def marked(value: Any) -> str:
        if not isinstance(value, RawJson):
            raise TypeError(f"{type(value).__name__} is not JSON")
        raw.append(value.text)
        return f"{mark}{len(raw) - 1}{mark}"

    text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=marked)
    for index, part in enumerate(raw):
        text = text.replace(f'"{mark}{index}{mark}"', part, 1)
    return text
