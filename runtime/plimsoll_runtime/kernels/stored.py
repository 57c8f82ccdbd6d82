"""A weight as the file stores it: the bytes, their storage type and the shape they stand for.

Owns the list of storage types and `StoredTensor`. It does not know files, models or how a type is computed with
(reference.py has the meaning of the bytes). Invariant: the bytes of a `StoredTensor` are exactly
`shape` weights of its storage, row by row, so rows can be taken, permuted and joined without decoding.

Shapes: R rows, C columns (weights of one row), B bytes of one row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

import torch


@dataclass(frozen=True, slots=True)
class Storage:
    """One storage type: `group_weights` weights share `group_bytes` bytes, and a row is a whole number of groups."""

    name: str
    group_weights: int
    group_bytes: int


_ALL = (
    Storage("F32", 1, 4),
    Storage("F16", 1, 2),
    Storage("BF16", 1, 2),
    Storage("Q4_0", 32, 18),
    Storage("Q4_1", 32, 20),
    Storage("Q5_0", 32, 22),
    Storage("Q5_1", 32, 24),
    Storage("Q8_0", 32, 34),
    Storage("Q4_K", 256, 144),
    Storage("Q5_K", 256, 176),
    Storage("Q6_K", 256, 210),
)
STORAGES: Mapping[str, Storage] = MappingProxyType({storage.name: storage for storage in _ALL})
"""The storage types that can be computed with, by GGUF's names for them. Every other type is refused by name."""

FLOAT_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
)
"""The storages that are plain numbers, and torch's word for them."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """`data_RB` holds the raw bytes (uint8) of `shape`, which is `(C,)` (one row) or `(R, C)`; it owns its memory."""

    storage: Storage
    shape: tuple[int, ...]
    data_RB: torch.Tensor

    @property
    def num_rows(self) -> int:
        return prod(self.shape[:-1])

    @property
    def num_columns(self) -> int:
        return self.shape[-1]

    @property
    def num_bytes(self) -> int:
        return self.data_RB.numel()

    def take_rows(self, rows: torch.Tensor) -> "StoredTensor":
        """The given rows (int64 indices), copied, in that order."""
        return StoredTensor(self.storage, (rows.numel(), self.num_columns), self.data_RB.index_select(0, rows))

    def slice_rows(self, start: int, stop: int) -> "StoredTensor":
        """Rows start..stop-1 as a view of the same memory."""
        rows_RB = self.data_RB[start:stop]
        return StoredTensor(self.storage, (rows_RB.shape[0], self.num_columns), rows_RB)

    def to(self, device: torch.device) -> "StoredTensor":
        return StoredTensor(self.storage, self.shape, self.data_RB.to(device))


def stored_bytes(storage: Storage, shape: Sequence[int]) -> int:
    """Bytes that `shape` takes in this storage. The last dimension must be a whole number of groups."""
    return prod(shape) // storage.group_weights * storage.group_bytes


def join_rows(parts: Sequence[StoredTensor]) -> StoredTensor:
    """The rows of several matrices of one storage and width, one below the other, copied."""
    shape = (sum(part.num_rows for part in parts), parts[0].num_columns)
    return StoredTensor(parts[0].storage, shape, torch.cat([part.data_RB for part in parts]))


def store_floats(values: torch.Tensor) -> StoredTensor:
    """A float32, float16 or bfloat16 tensor of one or two dimensions as a `StoredTensor` that shares its memory."""
    names = {dtype: name for name, dtype in FLOAT_DTYPES.items()}
    rows = values.contiguous().reshape(-1, values.shape[-1])
    return StoredTensor(STORAGES[names[values.dtype]], tuple(values.shape), rows.view(torch.uint8))
