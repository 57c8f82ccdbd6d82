"""GGUF headers built byte by byte, so that every number in them can be wrong."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

UINT8, UINT32, BOOL, STRING, ARRAY = 0, 4, 7, 8, 9


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return u64(len(raw)) + raw


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + u32(kind) + value


def tensor(name: str, sizes: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + u32(len(sizes)) + b"".join(map(u64, sizes)) + u32(kind) + u64(offset)


@dataclass(frozen=True, slots=True)
class Header:
    """A file of one string pair and one F32 tensor of eight numbers, unless told otherwise."""

    magic: bytes = b"GGUF"
    version: int = 3
    pairs: Sequence[bytes] = field(default_factory=lambda: [pair("general.architecture", STRING, text("llama"))])
    tensors: Sequence[bytes] = field(default_factory=lambda: [tensor("token_embd.weight", [4, 2])])
    num_pairs: int | None = None
    num_tensors: int | None = None
    data: bytes = bytes(32)

    def to_bytes(self) -> bytes:
        num_pairs = len(self.pairs) if self.num_pairs is None else self.num_pairs
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        head = self.magic + u32(self.version) + u64(num_tensors) + u64(num_pairs)
        head += b"".join(self.pairs) + b"".join(self.tensors)
        return head + bytes(-len(head) % 32) + self.data
