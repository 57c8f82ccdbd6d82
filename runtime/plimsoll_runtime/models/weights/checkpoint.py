"""A model on disk, opened: what it is, how much memory its weights take, and its parameters by role.

Owns `Checkpoint` and the choice of the format. In: a path (a folder in the Hugging Face layout, or a GGUF file).
Out: a Checkpoint whose headers are checked; weights are read later, one at a time. It does not know tokenizers or
templates; `folder` and `gguf_metadata` are for the text side. Invariant: a Checkpoint that was opened has every
parameter its architecture needs, with the right shape, inside its file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from plimsoll_runtime.kernels.stored import StoredTensor
from plimsoll_runtime.models.architecture import Architecture
from plimsoll_runtime.models.weights import gguf_model, hugging_face
from plimsoll_runtime.models.weights.entries import TensorEntry
from plimsoll_runtime.models.weights.errors import CheckpointError
from plimsoll_runtime.models.weights.gguf import read_gguf
from plimsoll_runtime.models.weights.safetensors import PICKLE_SUFFIXES, read_folder, read_json

__all__ = ["Checkpoint", "CheckpointError", "open_checkpoint"]


class Weights(Protocol):
    """Parameters by role (`architecture.parameter_shapes` lists them), in the decoder's conventions."""

    @property
    def num_bytes(self) -> int: ...

    @property
    def layer_storages(self) -> frozenset[str]: ...

    @property
    def roles(self) -> Mapping[str, TensorEntry]: ...

    def read(self, role: str) -> StoredTensor: ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`weight_bytes`: as stored, and as kept in memory. `generation_defaults`: raw keys of generation_config.json or
    of `general.sampling.*`. Exactly one of `gguf_metadata` and `folder` is set."""

    architecture: Architecture
    format: Literal["safetensors", "gguf"]
    weight_bytes: int
    generation_defaults: Mapping[str, float | int]
    eos_token_ids: frozenset[int]
    gguf_metadata: Mapping[str, Any] | None
    folder: Path | None
    weights: Weights

    @property
    def expert_bytes(self) -> int:
        """What all experts of a mixture take, as stored; the shared one is none of them."""
        return sum(entry.num_bytes for role, entry in self.weights.roles.items() if ".experts." in role)

    def read(self, role: str) -> StoredTensor:
        """One parameter in memory of its own. Raises CheckpointError when its bytes are not there any more."""
        return self.weights.read(role)


def open_checkpoint(path: Path) -> Checkpoint:
    """Reads headers only. Raises CheckpointError: one sentence naming the file and the field or tensor."""
    if path.is_dir():
        return _open_folder(path)
    if path.suffix in PICKLE_SUFFIXES:
        raise CheckpointError(f"{path}: a pickle file can run code and is never loaded; use safetensors or GGUF")
    if path.suffix == ".safetensors":
        raise CheckpointError(f"{path}: give the folder that holds config.json and the safetensors files")
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file or folder")
    return _open_gguf(path)


def _open_folder(folder: Path) -> Checkpoint:
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(
            f"{folder}: config.json is missing; a model is such a folder with safetensors, or a GGUF file"
        )
    config = read_json(path)
    declared = hugging_face.read_architecture(path, config)
    entries = read_folder(folder)
    architecture = replace(declared, tied_output=declared.tied_output and hugging_face.OUTPUT_NAME not in entries)
    weights = hugging_face.open_weights(folder, entries, architecture)
    generation_path = folder / "generation_config.json"
    generation = read_json(generation_path) if generation_path.is_file() else {}
    return Checkpoint(
        architecture=architecture,
        format="safetensors",
        weight_bytes=weights.num_bytes,
        generation_defaults=hugging_face.sampling_defaults(generation),
        eos_token_ids=hugging_face.end_token_ids(config, generation),
        gguf_metadata=None,
        folder=folder,
        weights=weights,
    )


def _open_gguf(path: Path) -> Checkpoint:
    file = read_gguf(path)
    architecture = gguf_model.read_architecture(file)
    weights = gguf_model.open_weights(file, architecture)
    return Checkpoint(
        architecture=architecture,
        format="gguf",
        weight_bytes=weights.num_bytes,
        generation_defaults=gguf_model.sampling_defaults(file.metadata),
        eos_token_ids=gguf_model.end_token_ids(file.metadata),
        gguf_metadata=file.metadata,
        folder=None,
        weights=weights,
    )
