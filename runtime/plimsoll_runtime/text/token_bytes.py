"""From a vocabulary's spelling of a token to the bytes it stands for.

Owns the two spellings in use: byte-level (GPT-2's alphabet, one character per byte) and SentencePiece (U+2581 for a
space, `<0x41>` for a byte). Added tokens are spelled as they are in both. Knows no ids. Invariant: joining the bytes
of any run of tokens, and decoding once, gives the text; no token needs its neighbours to be read.
"""

import re
from collections.abc import Callable

SPACE_MARK = "\u2581"
"""SentencePiece writes a space as this character."""

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")

PieceBytes = Callable[[str], bytes]


def byte_alphabet() -> dict[int, str]:
    """Byte to character as GPT-2 spells them: printable Latin-1 as itself, the other bytes from U+0100 upwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


_BYTE_OF_CHARACTER = {character: byte for byte, character in byte_alphabet().items()}


def byte_level_bytes(piece: str) -> bytes:
    """Bytes of a byte-level piece; a piece with a character outside the alphabet is spelled as it is."""
    try:
        return bytes([_BYTE_OF_CHARACTER[character] for character in piece])
    except KeyError:
        return piece.encode()


def sentencepiece_bytes(piece: str) -> bytes:
    """Bytes of a SentencePiece piece; the spelling `<0x41>` is that one byte."""
    byte = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else space_marked_bytes(piece)


def space_marked_bytes(piece: str) -> bytes:
    """Bytes of a SentencePiece piece in a vocabulary without byte tokens."""
    return piece.replace(SPACE_MARK, " ").encode()
