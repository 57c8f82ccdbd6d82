"""The tokenizer of a model folder in the Hugging Face layout.

Owns which files say what: `tokenizer.json` the vocabulary and what is added to a text, `tokenizer_config.json` and
`special_tokens_map.json` the names of special tokens, `generation_config.json` and `config.json` the end tokens. In:
the folder. Out: a `Tokenizer`, and the chat template's source. Nothing in the folder is ever executed.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from plimsoll_runtime.text.errors import TokenizerError
from plimsoll_runtime.text.special_tokens import SpecialTokens, end_ids
from plimsoll_runtime.text.token_bytes import (
    SPACE_MARK,
    PieceBytes,
    byte_level_bytes,
    sentencepiece_bytes,
    space_marked_bytes,
)
from plimsoll_runtime.text.tokenizer import Tokenizer

TOOL_TEMPLATE = "tool_use"
"""What `transformers` calls the template for chats with tools, where there are several."""

_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_SPELLING_STEPS = frozenset({"Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"})


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """Read the folder's tokenizer. Raises TokenizerError naming the file."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise TokenizerError(
            f"{folder} has no tokenizer.json: save the tokenizer with a current transformers, which writes it"
        )
    try:
        library = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:
        # The library raises a bare Exception for whatever it cannot read.
        raise TokenizerError(f"{path} cannot be read: {error}") from error
    piece_bytes = _piece_bytes(path, library)
    # SentencePiece's decoder reads added tokens as it reads the others: runs of spaces are written as U+2581 there.
    added_bytes = str.encode if piece_bytes is byte_level_bytes else space_marked_bytes
    return Tokenizer(library, _special_tokens(folder, library), piece_bytes, added_bytes)


def template_source_from_folder(folder: Path) -> str | None:
    """The chat template of the folder, the one named `default` where there are several; None where there is none."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    return next(_templates(folder, "default"), None)


def tool_template_source_from_folder(folder: Path) -> str | None:
    """The template that the folder keeps for chats with tools beside its default one; None where one serves both."""
    path = folder / "additional_chat_templates" / f"{TOOL_TEMPLATE}.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    return next(_templates(folder, TOOL_TEMPLATE, alone=False), None)


def _templates(folder: Path, wanted: str, *, alone: bool = True) -> Iterator[str]:
    """Templates of this name; `alone`: also one that stands without a name."""
    for name in ("tokenizer_config.json", "chat_template.json"):
        template = _read(folder, name).get("chat_template")
        if isinstance(template, list):
            template = {entry.get("name"): entry.get("template") for entry in template}.get(wanted)
        elif not alone:
            continue
        if isinstance(template, str):
            yield template


def _special_tokens(folder: Path, library: tokenizers.Tokenizer) -> SpecialTokens:
    named = _named_tokens(folder)
    configs = [_read(folder, name) for name in ("generation_config.json", "config.json")]
    texts = [named.get(name) for name in ("bos_token", "eos_token")]
    bos_id, eos_id = (None if text is None else library.token_to_id(text) for text in texts)
    declared = {token_id for config in configs for token_id in _ids(config.get("eos_token_id"))}
    if eos_id is not None:
        declared.add(eos_id)
    added = library.get_added_tokens_decoder()
    ids = {token.content: token_id for token_id, token in added.items()}
    begin = library.encode("").ids[:1]
    return SpecialTokens(
        bos_id=bos_id,
        eos_id=eos_id,
        end_ids=end_ids(declared, ids, lambda token_id: added[token_id].special),
        adds_bos=bos_id is not None and begin == [bos_id],
        named=named,
    )


def _named_tokens(folder: Path) -> dict[str, str]:
    named = {}
    for source in (_read(folder, "special_tokens_map.json"), _read(folder, "tokenizer_config.json")):
        for name in _NAMES:
            value = source.get(name)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                named[name] = text
    return named


def _ids(value: Any) -> Iterator[int]:
    for token_id in value if isinstance(value, list) else [value]:
        if isinstance(token_id, int) and token_id >= 0:
            yield token_id


def _read(folder: Path, name: str) -> Mapping[str, Any]:
    path = folder / name
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{path} is not a JSON object")
    return content


def _piece_bytes(path: Path, library: tokenizers.Tokenizer) -> PieceBytes:
    """How the vocabulary spells tokens, read off the decoder that the file names."""
    # Pickling a decoder is the library's way to show it as JSON.
    decoder = None if library.decoder is None else json.loads(library.decoder.__getstate__())
    steps = [] if decoder is None else decoder.get("decoders", [decoder])
    kinds = {step["type"] for step in steps}
    if kinds and kinds <= {"ByteLevel", "Fuse"} and "ByteLevel" in kinds:
        return byte_level_bytes
    if kinds and kinds <= _SPELLING_STEPS and all(map(_is_plain, steps)):
        return sentencepiece_bytes if "ByteFallback" in kinds else space_marked_bytes
    raise TokenizerError(
        f"{path} has the decoder {json.dumps(decoder)[:200]}: its tokens cannot be turned into exact bytes; "
        "supported are ByteLevel and SentencePiece's (Metaspace, or Replace with ByteFallback)"
    )


def _is_plain(step: dict[str, Any]) -> bool:
    """Steps that say no more than: the space is written as U+2581."""
    match step["type"]:
        case "Replace":
            return bool(step["pattern"] == {"String": SPACE_MARK} and step["content"] == " ")
        case "Metaspace":
            return bool(step["replacement"] == SPACE_MARK)
        case "Strip":
            return bool(step["content"] == " ")
        case _:
            return True
