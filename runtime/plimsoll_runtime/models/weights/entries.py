"""Where a tensor lies in a file, and which tensor plays which part in a model.

Owns `TensorEntry`, the match of a model's parameters ("roles") with a file's tensors, and reading the bytes of one.
It does not know formats: gguf.py and safetensors.py make the entries. Invariant: after `match_roles` every parameter
has exactly one tensor of the right shape and no tensor of the file is left over unnoticed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from plimsoll_runtime.kernels.stored import Storage, StoredTensor
from plimsoll_runtime.models.weights.errors import CheckpointError

MAX_NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor in a file: its storage, shape (rows first), and the bytes `offset .. offset + num_bytes - 1`."""

    name: str
    storage: Storage
    shape: tuple[int, ...]
    path: Path
    offset: int
    num_bytes: int


def layer_storages(roles: Mapping[str, TensorEntry]) -> frozenset[str]:
    """The storages of the matrices of all layers."""
    return frozenset(
        entry.storage.name for role, entry in roles.items() if role.startswith("layers.") and len(entry.shape) > 1
    )


def match_roles(
    source: Path,
    shapes: Mapping[str, tuple[int, ...]],
    entries: Mapping[str, TensorEntry],
    name_of: Callable[[str], str],
    is_ignorable: Callable[[str], bool],
) -> dict[str, TensorEntry]:
    """The entry of each role. Raises CheckpointError naming tensors that are missing, left over or wrongly shaped."""
    names = {role: name_of(role) for role in shapes}
    _require_none(source, "are missing", [name for name in names.values() if name not in entries])
    left_over = sorted(name for name in entries.keys() - set(names.values()) if not is_ignorable(name))
    _require_none(source, "are not expected in this architecture", left_over)
    for role, name in names.items():
        if entries[name].shape != shapes[role]:
            raise CheckpointError(
                f"{source}: tensor {name} has shape {list(entries[name].shape)}, expected {list(shapes[role])}"
            )
    return {role: entries[name] for role, name in names.items()}


def split_first_dimension(entry: TensorEntry) -> list[TensorEntry]:
    """One entry for each index of the first dimension, `NAME[index]`, over its own part of the bytes."""
    count, num_bytes = entry.shape[0], entry.num_bytes // entry.shape[0]
    return [
        replace(
            entry,
            name=f"{entry.name}[{index}]",
            shape=entry.shape[1:],
            offset=entry.offset + index * num_bytes,
            num_bytes=num_bytes,
        )
        for index in range(count)
    ]


def read_bytes(entry: TensorEntry) -> StoredTensor:
    """The tensor in memory of its own, read without mapping the file. Raises CheckpointError."""
    data = torch.empty(entry.num_bytes, dtype=torch.uint8)
    try:
        with entry.path.open("rb", buffering=0) as file:
            file.seek(entry.offset)
            num_read = _fill(file.readinto, data.numpy().data)
    except OSError as error:
        raise CheckpointError(f"{entry.path}: tensor {entry.name} cannot be read: {error.strerror}") from error
    if num_read != entry.num_bytes:
        raise CheckpointError(f"{entry.path}: tensor {entry.name} is cut off after {num_read:,} bytes")
    rows = 1 if len(entry.shape) == 1 else entry.shape[0]
    return StoredTensor(entry.storage, entry.shape, data.view(rows, -1))


def _fill(read_into: Callable[[memoryview], int | None], target: memoryview) -> int:
    """One read call may bring less than asked for (Linux stops at 2 GiB)."""
    at = 0
    while at < len(target):
        num_read = read_into(target[at:])
        if not num_read:
            break
        at += num_read
    return at


def _require_none(source: Path, what: str, names: Sequence[str]) -> None:
    if not names:
        return
    shown = ", ".join(names[:MAX_NAMES_SHOWN])
    more = f" and {len(names) - MAX_NAMES_SHOWN} more" if len(names) > MAX_NAMES_SHOWN else ""
    raise CheckpointError(f"{source}: these tensors {what}: {shown}{more}")
