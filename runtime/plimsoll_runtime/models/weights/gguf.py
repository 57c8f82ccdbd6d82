"""The header of a GGUF file: metadata and where each tensor lies, checked before anything is believed.

Owns reading GGUF versions 2 and 3, little-endian, in one file or split into parts. In: a path. Out: metadata as
Python values and tensor entries. It does not know models. Our own reader, since the `gguf` library's `GGUFReader`
takes 3 to 17 s for real vocabularies and believes every number in the file; that library gives the names of the tensor
types here, and is the reference in tests. Source of the layout: the GGUF specification (ggml, docs/gguf.md).
Invariants: no number of the file is used as a size before it is compared with the bytes that are left, so memory is
bounded by the file; every fault is a CheckpointError that names the file and the field.
"""

import mmap
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from gguf.constants import GGMLQuantizationType

from plimsoll_runtime.kernels.stored import STORAGES, stored_bytes
from plimsoll_runtime.models.weights.entries import TensorEntry
from plimsoll_runtime.models.weights.errors import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_KEY_BYTES = 65_535
MAX_TENSOR_NAME_BYTES = 256
MAX_DIMENSIONS = 4
MIN_PAIR_BYTES = 8 + 1 + 4 + 1
"""The least a metadata pair takes: key length, one letter, type, one byte of value."""
MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8
"""The least a tensor entry takes: name length, one letter, number of dimensions, one dimension, type, offset."""

SCALARS: Mapping[int, str] = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
BOOL, STRING, ARRAY = 7, 8, 9
SPLIT_NAME = re.compile(r"^(?P<stem>.*)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf$")


@dataclass(frozen=True, slots=True)
class GgufFile:
    """Metadata `{key: value}` (arrays as lists; a string that is not UTF-8 stays bytes) and tensors by name."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]


def read_gguf(path: Path) -> GgufFile:
    """Reads the headers of a file, or of all parts of a split one. Raises CheckpointError."""
    first = read_part(path)
    num_parts = first.metadata.get("split.count", 1)
    if num_parts == 1:
        return first
    parts = [read_part(part) for part in _part_paths(path, num_parts)]
    tensors: dict[str, TensorEntry] = {}
    for part in parts:
        for name in part.tensors.keys() & tensors.keys():
            raise CheckpointError(f"{part.path}: tensor {name} is also in {tensors[name].path.name}")
        tensors |= part.tensors
    _check_split(parts, len(tensors))
    return GgufFile(parts[0].path, parts[0].metadata, tensors)


def read_part(path: Path) -> GgufFile:
    """Reads one file's header through a mapping that is closed again: no page of it stays resident."""
    try:
        with path.open("rb") as file:
            if file.seek(0, 2) == 0:
                raise CheckpointError(f"{path}: the file is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                return _Header(path, mapped).read()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error


def _part_paths(path: Path, num_parts: Any) -> list[Path]:
    name = SPLIT_NAME.match(path.name)
    if name is None or not isinstance(num_parts, int) or int(name["count"]) != num_parts:
        raise CheckpointError(
            f"{path}: split.count is {num_parts!r}, but the file is not named NAME-00001-of-{num_parts:05}.gguf"
            if isinstance(num_parts, int)
            else f"{path}: split.count {num_parts!r} is not a number"
        )
    paths = [path.with_name(f"{name['stem']}-{part:05}-of-{name['count']}.gguf") for part in range(1, num_parts + 1)]
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        raise CheckpointError(f"{path}: the model has {num_parts} parts, and these are missing: {', '.join(missing)}")
    return paths


def _check_split(parts: Sequence[GgufFile], num_tensors: int) -> None:
    for index, part in enumerate(parts):
        if part.metadata.get("split.no") != index or part.metadata.get("split.count") != len(parts):
            raise CheckpointError(f"{part.path}: split.no and split.count do not say part {index} of {len(parts)}")
    declared = parts[0].metadata.get("split.tensors.count", num_tensors)
    if declared != num_tensors:
        raise CheckpointError(f"{parts[0].path}: split.tensors.count is {declared}, the parts hold {num_tensors}")


class _Header:
    """A cursor over one file. Every read says which field it reads, for the message when the file ends too early."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._size = len(data)
        self._at = 0

    def read(self) -> GgufFile:
        if self._data[:4] != MAGIC:
            self._fail(f"not a GGUF file: it begins with {self._data[:16]!r}")
        self._at = 4
        self._check_version(self._unsigned(4, "version"))
        num_tensors = self._count("tensor_count", MIN_TENSOR_BYTES)
        num_pairs = self._count("metadata_kv_count", MIN_PAIR_BYTES)
        metadata = self._metadata(num_pairs)
        infos = [self._tensor_info() for _ in range(num_tensors)]
        start = self._data_start(metadata)
        return GgufFile(self._path, metadata, self._place(infos, start, _alignment(metadata)))

    def _fail(self, message: str) -> NoReturn:
        raise CheckpointError(f"{self._path}: {message}")

    def _check_version(self, version: int) -> None:
        if version in VERSIONS:
            return
        order = " (the file is big-endian)" if version & 0xFFFF == 0 else ""
        self._fail(f"version is {version}{order}; supported are {', '.join(map(str, VERSIONS))}, little-endian")

    def _take(self, num_bytes: int, field: str) -> int:
        """Moves over `num_bytes` and returns where they start."""
        start, left = self._at, self._size - self._at
        if num_bytes > left:
            self._fail(
                f"{field} needs {num_bytes:,} bytes at offset {start:,}, and {left:,} are left: cut off or broken"
            )
        self._at = start + num_bytes
        return start

    def _unsigned(self, num_bytes: int, field: str) -> int:
        start = self._take(num_bytes, field)
        return int.from_bytes(self._data[start : start + num_bytes], "little")

    def _count(self, field: str, min_bytes: int) -> int:
        """A number of things that take at least `min_bytes` each in what is left of the file."""
        count, left = self._unsigned(8, field), self._size - self._at
        if count * min_bytes > left:
            self._fail(f"{field} is {count:,}, more than fit into the {left:,} bytes that are left")
        return count

    def _string(self, field: str) -> str | bytes:
        start = self._take(self._unsigned(8, f"the length of {field}"), field)
        raw = self._data[start : self._at]
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw

    def _name(self, field: str, max_bytes: int) -> str:
        length = self._unsigned(8, f"the length of {field}")
        if not 1 <= length <= max_bytes:
            self._fail(f"{field} has {length:,} bytes; 1 to {max_bytes:,} are allowed")
        start = self._take(length, field)
        try:
            return self._data[start : self._at].decode()
        except UnicodeDecodeError:
            self._fail(f"{field} at offset {start:,} is not UTF-8")

    def _metadata(self, num_pairs: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for index in range(num_pairs):
            key = self._name(f"key {index}", MAX_KEY_BYTES)
            if key in metadata:
                self._fail(f"key {key} stands twice in the metadata")
            metadata[key] = self._value(self._unsigned(4, f"the type of {key}"), key)
        return metadata

    def _value(self, kind: int, key: str) -> Any:
        if kind == STRING:
            return self._string(key)
        if kind == ARRAY:
            return self._array(key)
        if kind == BOOL:
            return self._checked_bools(1, key)[0]
        return self._numbers(kind, 1, key)[0]

    def _array(self, key: str) -> list[Any]:
        kind = self._unsigned(4, f"the element type of {key}")
        field = f"the length of {key}"
        if kind == STRING:
            return self._strings(self._count(field, 8), key)
        if kind == BOOL:
            return self._checked_bools(self._count(field, 1), key)
        return self._numbers(kind, self._count(field, self._scalar(kind, key).itemsize), key)

    def _scalar(self, kind: int, key: str) -> np.dtype[Any]:
        if kind not in SCALARS:
            self._fail(f"{key} has the unknown value type {kind}")
        return np.dtype(SCALARS[kind])

    def _numbers(self, kind: int, count: int, key: str) -> list[Any]:
        scalar = self._scalar(kind, key)
        start = self._take(count * scalar.itemsize, key)
        values: list[Any] = np.frombuffer(self._data[start : self._at], scalar).tolist()
        return values

    def _checked_bools(self, count: int, key: str) -> list[bool]:
        start = self._take(count, key)
        raw = self._data[start : self._at]
        if raw.translate(None, b"\x00\x01"):
            self._fail(f"{key} is a bool that is neither 0 nor 1")
        return [byte == 1 for byte in raw]

    def _strings(self, count: int, key: str) -> list[str | bytes]:
        """The hot loop: vocabularies have hundreds of thousands. Bounds are checked for every string."""
        data, size, at, unpack = self._data, self._size, self._at, struct.Struct("<Q").unpack_from
        strings: list[str | bytes] = []
        for index in range(count):
            end = at + 8
            if end <= size:
                end += unpack(data, at)[0]
            if end > size:
                self._at = at
                self._fail(f"{key}[{index}] reaches beyond the end of the file at {size:,}: cut off or broken")
            raw = data[at + 8 : end]
            try:
                strings.append(raw.decode())
            except UnicodeDecodeError:
                strings.append(raw)
            at = end
        self._at = at
        return strings

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape (rows first), type and offset."""
        name = self._name("a tensor's name", MAX_TENSOR_NAME_BYTES)
        num_dimensions = self._unsigned(4, f"the number of dimensions of {name}")
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            self._fail(f"tensor {name} has {num_dimensions:,} dimensions; 1 to {MAX_DIMENSIONS} are allowed")
        sizes = [self._unsigned(8, f"the dimensions of {name}") for _ in range(num_dimensions)]
        kind = self._unsigned(4, f"the type of {name}")
        return name, tuple(reversed(sizes)), kind, self._unsigned(8, f"the offset of {name}")

    def _data_start(self, metadata: Mapping[str, Any]) -> int:
        alignment = _alignment(metadata)
        if not isinstance(alignment, int) or not _is_alignment(alignment):
            self._fail(f"general.alignment is {alignment!r}; it must be a power of two of at least 8")
        return -(-self._at // alignment) * alignment

    def _place(
        self, infos: Sequence[tuple[str, tuple[int, ...], int, int]], start: int, alignment: int
    ) -> dict[str, TensorEntry]:
        tensors: dict[str, TensorEntry] = {}
        for name, shape, kind, offset in infos:
            if name in tensors:
                self._fail(f"tensor {name} stands twice in the file")
            if offset % alignment:
                self._fail(f"the offset {offset:,} of tensor {name} is not a multiple of general.alignment {alignment}")
            tensors[name] = self._entry(name, shape, kind, start + offset)
        self._check_overlap(sorted(tensors.values(), key=lambda entry: entry.offset))
        return tensors

    def _entry(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> TensorEntry:
        known = {member.value: member.name for member in GGMLQuantizationType}.get(kind, "unknown")
        if known not in STORAGES:
            self._fail(f"tensor {name} has type {kind} ({known}); supported are {', '.join(STORAGES)}")
        storage = STORAGES[known]
        if min(shape) < 1 or prod(shape) >= 2**63:
            self._fail(f"the dimensions {list(shape)} of tensor {name} are impossible")
        if shape[-1] % storage.group_weights:
            self._fail(f"tensor {name} has rows of {shape[-1]:,}, not a multiple of {storage.group_weights}")
        num_bytes = stored_bytes(storage, shape)
        if offset + num_bytes > self._size:
            self._fail(
                f"tensor {name} ends at byte {offset + num_bytes:,}, the file has {self._size:,}: cut off or broken"
            )
        return TensorEntry(name, storage, shape, self._path, offset, num_bytes)

    def _check_overlap(self, entries: Sequence[TensorEntry]) -> None:
        for before, after in pairwise(entries):
            if before.offset + before.num_bytes > after.offset:
                self._fail(f"tensors {before.name} and {after.name} overlap")


def _alignment(metadata: Mapping[str, Any]) -> Any:
    return metadata.get("general.alignment", DEFAULT_ALIGNMENT)


def _is_alignment(value: Any) -> bool:
    return isinstance(value, int) and 8 <= value <= 2**31 and value & (value - 1) == 0 and not isinstance(value, bool)
