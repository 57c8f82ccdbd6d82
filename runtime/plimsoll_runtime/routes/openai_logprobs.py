"""Log probabilities in OpenAI's two shapes: the list of objects of chat, and the parallel arrays of completions.

In: `TextLogprob`s. Out: JSON values. It does not know which tokens are special. Every number is finite as
it comes (engine/logprobs.py sees to it). Invariant: a token that is a part of a character is spelled with
escapes, so no replacement character ever stands for bytes that the client could not tell apart.
"""

import codecs
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from plimsoll_runtime.events import TextLogprob


def chat_logprobs(logprobs: Iterable[TextLogprob]) -> dict[str, Any]:
    """`logprobs` of a chat choice, whole or streamed."""
    return {"content": [_chat_entry(entry) for entry in logprobs], "refusal": None}


def _chat_entry(entry: TextLogprob) -> dict[str, Any]:
    own = _chat_token(entry.token_bytes, entry.logprob)
    return own | {"top_logprobs": [_chat_token(token_bytes, logprob) for _, token_bytes, logprob in entry.top]}


def _chat_token(token_bytes: bytes, logprob: float) -> dict[str, Any]:
    return {"token": _spelled(token_bytes, ""), "logprob": logprob, "bytes": list(token_bytes)}


class LegacyLogprobs:
    """The arrays of one completions choice. `text_offset` runs on from chunk to chunk, so each choice has its own.

    Offsets count characters of the choice's text; a token inside a character has the offset of that character.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def of_prompt(
        self, text: str, token_texts: Sequence[str], logprobs: Sequence[TextLogprob | None]
    ) -> dict[str, list[Any]]:
        """Arrays of an echoed prompt. A token that is not in the text, such as BOS, takes no room in the offsets."""
        arrays = _empty_arrays()
        data, position = text.encode(), 0
        for token_text, entry in zip(token_texts, logprobs, strict=True):
            token_bytes = token_text.encode() if entry is None else entry.token_bytes
            _append(arrays, token_text, entry, self._offset)
            shown = _shown_at(data, position, token_bytes)
            position += len(shown)
            self._offset += len(self._decoder.decode(shown))
        self._decoder.reset()
        self._offset = len(text)
        return arrays

    def of_tokens(self, logprobs: Iterable[TextLogprob]) -> dict[str, list[Any]]:
        """Arrays of the tokens sampled next."""
        arrays = _empty_arrays()
        for entry in logprobs:
            _append(arrays, entry.text, entry, self._offset)
            self._offset += len(self._decoder.decode(entry.token_bytes))
        return arrays


def joined(first: Mapping[str, list[Any]], second: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Two sets of arrays, one after the other."""
    return {name: values + second[name] for name, values in first.items()}


def _empty_arrays() -> dict[str, list[Any]]:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def _append(arrays: dict[str, list[Any]], text: str, entry: TextLogprob | None, offset: int) -> None:
    arrays["tokens"].append(text if entry is None else _spelled(entry.token_bytes, "bytes:"))
    arrays["token_logprobs"].append(None if entry is None else entry.logprob)
    arrays["top_logprobs"].append(None if entry is None else _legacy_top(entry))
    arrays["text_offset"].append(offset)


def _legacy_top(entry: TextLogprob) -> dict[str, float]:
    """The likeliest tokens best first, and the chosen one even where it is not among them."""
    top: dict[str, float] = {}
    for _, token_bytes, logprob in (*entry.top, ("", entry.token_bytes, entry.logprob)):
        top.setdefault(_spelled(token_bytes, "bytes:"), logprob)
    return top


def _shown_at(data: bytes, position: int, token_bytes: bytes) -> bytes:
    """As much of a token as stands in the text; SentencePiece puts a space before a text that began without one."""
    if data.startswith(token_bytes, position):
        return token_bytes
    without_space = token_bytes.removeprefix(b" ")
    return without_space if position == 0 and data.startswith(without_space) else b""


def _spelled(token_bytes: bytes, escape_prefix: str) -> str:
    try:
        return token_bytes.decode()
    except UnicodeDecodeError:
        return escape_prefix + "".join(f"\\x{byte:02x}" for byte in token_bytes)
