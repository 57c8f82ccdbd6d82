"""Safetensors files of a Hugging Face folder: which there are, what their headers say, and their data.

Owns shards and headers. In: a folder. Out: entries by name, each with its place in its file. It does not know models.
The header is compared with the file's length, so that a cut-off file is refused at once with the tensor's name; the
bytes are read by `entries.read_bytes`, as they are for GGUF, so that a part of a tensor can be read alone. Pickle files
are never opened. Source: the format's README (8 bytes of length, JSON, data).
"""

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

from plimsoll_runtime.kernels.stored import FLOAT_DTYPES, STORAGES, stored_bytes
from plimsoll_runtime.models.weights.entries import TensorEntry
from plimsoll_runtime.models.weights.errors import CheckpointError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000
MAX_JSON_BYTES = 100_000_000
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def read_folder(folder: Path) -> dict[str, TensorEntry]:
    """The tensors of all shards by name. Raises CheckpointError naming what is missing, broken or refused."""
    index = folder / INDEX_FILE
    if index.is_file():
        return _read_shards(folder, _weight_map(index))
    single = folder / SINGLE_FILE
    if single.is_file():
        return read_header(single)
    raise CheckpointError(_why_nothing(folder))


def read_header(path: Path) -> dict[str, TensorEntry]:
    """The entries of one file, each compared with the file's length."""
    try:
        with path.open("rb") as file:
            num_file_bytes = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if num_file_bytes < 8 or length > min(num_file_bytes - 8, MAX_HEADER_BYTES):
                raise CheckpointError(
                    f"{path}: the header length {length:,} does not fit a file of {num_file_bytes:,} bytes"
                )
            header = parse_object(path, file.read(length))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    return {
        name: _entry(path, name, value, 8 + length, num_file_bytes)
        for name, value in header.items()
        if name != "__metadata__"
    }


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a bounded size. Raises CheckpointError."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    if len(raw) > MAX_JSON_BYTES:
        raise CheckpointError(f"{path}: larger than {MAX_JSON_BYTES:,} bytes")
    return parse_object(path, raw)


def parse_object(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    return value


def _weight_map(index: Path) -> dict[str, str]:
    mapping = read_json(index).get("weight_map")
    if not isinstance(mapping, dict) or not mapping:
        raise CheckpointError(f"{index}: weight_map is missing or empty")
    for name, file in mapping.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise CheckpointError(f"{index}: weight_map of {name} is {file!r}, not a safetensors file of this folder")
    return mapping


def _read_shards(folder: Path, weight_map: Mapping[str, str]) -> dict[str, TensorEntry]:
    files = sorted(set(weight_map.values()))
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        raise CheckpointError(f"{folder / INDEX_FILE}: these files are missing: {', '.join(missing)}")
    shards = {file: read_header(folder / file) for file in files}
    for name, file in weight_map.items():
        if name not in shards[file]:
            raise CheckpointError(f"{folder / file}: tensor {name} is missing, though {INDEX_FILE} says it is there")
    return {name: shards[file][name] for name, file in weight_map.items()}


def _entry(path: Path, name: str, value: Any, data_start: int, num_file_bytes: int) -> TensorEntry:
    kind, shape, offsets = _parts(path, name, value)
    if kind not in FLOAT_DTYPES:
        raise CheckpointError(f"{path}: tensor {name} has dtype {kind}; supported are {', '.join(FLOAT_DTYPES)}")
    storage = STORAGES[kind]
    start, stop = offsets
    if stop - start != stored_bytes(storage, shape):
        raise CheckpointError(f"{path}: tensor {name} of shape {shape} has data_offsets {offsets}: the sizes differ")
    if data_start + stop > num_file_bytes:
        raise CheckpointError(
            f"{path}: tensor {name} ends at byte {data_start + stop:,}, the file has {num_file_bytes:,}: cut off"
        )
    return TensorEntry(name, storage, tuple(shape), path, data_start + start, stop - start)


def _parts(path: Path, name: str, value: Any) -> tuple[Any, list[int], list[int]]:
    """Dtype, shape and offsets, the latter two whole numbers."""
    fields = value if isinstance(value, dict) else {}
    shape, offsets = fields.get("shape"), fields.get("data_offsets")
    if not _are_sizes(shape, 1) or not shape or prod(shape) >= 2**63:
        raise CheckpointError(f"{path}: tensor {name} has the impossible shape {str(shape)[:80]}")
    if not _are_sizes(offsets, 0) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{path}: tensor {name} has the impossible data_offsets {str(offsets)[:80]}")
    return fields.get("dtype"), shape, offsets


def _are_sizes(values: Any, minimum: int) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(
        isinstance(value, int) and not isinstance(value, bool) and value >= minimum for value in values
    )


def _why_nothing(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    pickles = [name for name in names if name.endswith(PICKLE_SUFFIXES)]
    shards = [name for name in names if name.endswith(".safetensors")]
    if shards:
        return f"{folder}: {INDEX_FILE} is missing beside {', '.join(shards[:3])}: the download is not complete"
    if pickles:
        return f"{folder}: {pickles[0]} is a pickle file, which can run code and is never loaded; use safetensors"
    return f"{folder}: neither {SINGLE_FILE} nor {INDEX_FILE} is there"
