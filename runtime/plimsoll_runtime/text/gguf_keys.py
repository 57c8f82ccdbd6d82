"""The raw lists under `tokenizer.ggml.*`, with types and lengths checked once.

In: metadata as Python values (lists may be long: 262,144 tokens). Out: `Vocabulary`. It does not know what kind of
vocabulary it is. Invariant: every token has exactly one text, no two tokens have the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from plimsoll_runtime.text.errors import TokenizerError

PREFIX = "tokenizer.ggml."

TYPE_NORMAL = 1
TYPE_UNKNOWN = 2
TYPE_CONTROL = 3
TYPE_USER_DEFINED = 4
TYPE_UNUSED = 5


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token texts by id and back, their types, and the rest of the keys."""

    tokens: list[str]
    types: list[int]
    ids: dict[str, int]
    metadata: Mapping[str, Any]

    def is_control(self, token_id: int) -> bool:
        """Whether the token is recognized only where control tokens are, and never visible."""
        return self.types[token_id] in (TYPE_CONTROL, TYPE_UNKNOWN)

    def strings(self, name: str) -> list[str] | None:
        """A list of strings, or None where the key is absent."""
        return _typed_list(self.metadata, name, (str,))

    def numbers(self, name: str) -> list[float] | None:
        """A list of numbers as long as the vocabulary, or None where the key is absent."""
        return _whole_list(self.metadata, name, (float, int), len(self.tokens))

    def flag(self, name: str, default: bool) -> bool:
        """A switch. Raises TokenizerError where it is something else."""
        value = self.metadata.get(PREFIX + name, default)
        if not isinstance(value, bool):
            raise TokenizerError(f"{PREFIX}{name} is {value!r}, not true or false")
        return value

    def token_id(self, name: str, default: int | None = None) -> int | None:
        """The id under `<name>_token_id`; the default stands only where the vocabulary has such a token."""
        key = f"{PREFIX}{name}_token_id"
        value = self.metadata.get(key)
        if value is None:
            return default if default is not None and default < len(self.tokens) else None
        if not isinstance(value, int) or not 0 <= value < len(self.tokens):
            raise TokenizerError(f"{key} is {value!r}, but the vocabulary has the ids 0 to {len(self.tokens) - 1}")
        return value


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Check the lists and index the texts. Raises TokenizerError naming the key."""
    tokens = _typed_list(metadata, "tokens", (str,))
    if not tokens:
        raise TokenizerError(f"{PREFIX}tokens is missing or empty: the file carries no vocabulary")
    types = _whole_list(metadata, "token_type", (int,), len(tokens)) or list(repeat(TYPE_NORMAL, len(tokens)))
    while len(tokens) > 1 and types[-1] == TYPE_UNUSED and tokens[-1] == f"[PAD{len(tokens) - 1}]":
        # Converters fill the vocabulary up to the embedding's rows; no text ever becomes such a row.
        tokens, types = tokens[:-1], types[:-1]
    tokens = [text or f"[EMPTY_{token_id}]" for token_id, text in enumerate(tokens)]
    ids = {text: token_id for token_id, text in enumerate(tokens)}
    if len(ids) != len(tokens):
        twice = next(text for token_id, text in enumerate(tokens) if ids[text] != token_id)
        raise TokenizerError(f"{PREFIX}tokens has {twice!r} twice: the vocabulary is broken, convert the model again")
    return Vocabulary(tokens, types, ids, metadata)


def _whole_list(metadata: Mapping[str, Any], name: str, kinds: tuple[type, ...], length: int) -> list[Any] | None:
    values = _typed_list(metadata, name, kinds)
    if values is not None and len(values) < length:
        raise TokenizerError(f"{PREFIX}{name} has {len(values)} values for {length} tokens: the file is broken")
    return values


def _typed_list(metadata: Mapping[str, Any], name: str, kinds: tuple[type, ...]) -> list[Any] | None:
    values = metadata.get(PREFIX + name)
    if values is None:
        return None
    if not isinstance(values, list) or not all(map(isinstance, values, repeat(kinds))):
        raise TokenizerError(f"{PREFIX}{name} is not a list of {kinds[0].__name__}: the file is broken")
    return values
