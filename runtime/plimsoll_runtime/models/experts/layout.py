"""How an expert lies in bytes: its matrices one behind the other, in the forms that they are computed with.

Owns `ExpertForm`, one for each layer, and where an expert's bytes come from. In: an opened checkpoint. Out: bytes to
keep anywhere, and a `GatedNetwork` over them. It does not know where they are kept. Invariant: all experts of a layer
take the same number of bytes, a whole number of BLOCK_BYTES, which direct reads need.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from plimsoll_runtime.kernels.matrix import Matrix, StackedMatrix
from plimsoll_runtime.kernels.matrix_forms import MatrixForm, choose_form
from plimsoll_runtime.kernels.native_library import NativeKernels
from plimsoll_runtime.kernels.stored import join_rows
from plimsoll_runtime.models.architecture import Activation
from plimsoll_runtime.models.feed_forward import GatedNetwork
from plimsoll_runtime.models.weights.checkpoint import Checkpoint
from plimsoll_runtime.models.weights.errors import CheckpointError

BLOCK_BYTES = 4096
LINE_BYTES = 64
"""Matrices begin at a cache line, as the kernels' own memory does."""

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Part:
    """One matrix of an expert: the weights it is joined of, its form, and where its bytes begin."""

    names: tuple[str, ...]
    form: MatrixForm
    offset: int


@dataclass(frozen=True, slots=True)
class ExpertForm:
    """Any expert of one layer. `parts`: gate and up, in one matrix or two, and last down."""

    parts: tuple[Part, ...]
    activation: Activation

    @property
    def num_bytes(self) -> int:
        last = self.parts[-1]
        return -(-(last.offset + last.form.num_bytes) // BLOCK_BYTES) * BLOCK_BYTES

    @property
    def text(self) -> str:
        return " + ".join(part.form.text for part in self.parts)

    def write(self, checkpoint: Checkpoint, prefix: str, to: torch.Tensor) -> None:
        """Reads the expert whose roles begin with `prefix` into `num_bytes` uint8."""
        to.zero_()
        for part in self.parts:
            stored = [checkpoint.read(f"{prefix}.{name}") for name in part.names]
            part.form.write(stored[0] if len(stored) == 1 else join_rows(stored), _bytes_of(part, to))

    def open(self, data: torch.Tensor) -> GatedNetwork:
        """The network over bytes that `write` filled, or fills later."""
        *gate_up, down = [part.form.open(_bytes_of(part, data)) for part in self.parts]
        return GatedNetwork(_stacked(gate_up), down, self.activation)


@dataclass(frozen=True, slots=True)
class ExpertLayout:
    """All experts of a model. They are numbered layer by layer: `number = layer * num_experts + expert`."""

    forms: tuple[ExpertForm, ...]
    num_experts: int
    sources: tuple[Path, ...]

    @property
    def count(self) -> int:
        return len(self.forms) * self.num_experts

    @property
    def slot_bytes(self) -> int:
        """What any expert fits into."""
        return max(form.num_bytes for form in self.forms)

    @property
    def num_bytes(self) -> int:
        return sum(form.num_bytes for form in self.forms) * self.num_experts

    def form_of(self, number: int) -> ExpertForm:
        return self.forms[number // self.num_experts]

    def prefix_of(self, number: int) -> str:
        """What the roles of the expert's weights begin with."""
        layer, expert = divmod(number, self.num_experts)
        return f"layers.{layer}.experts.{expert}"


def lay_out_experts(checkpoint: Checkpoint, dtype: torch.dtype, native: NativeKernels | None) -> ExpertLayout:
    """The layout for products in `dtype` on a processor. The model must be a mixture."""
    shape = checkpoint.architecture
    assert shape.mixture is not None, "a model without experts"
    num_experts = shape.mixture.num_experts
    layers = [
        [_form(checkpoint, f"layers.{layer}.experts.{expert}", dtype, native) for expert in range(num_experts)]
        for layer in range(shape.num_layers)
    ]
    for layer, forms in enumerate(layers):
        if any(form.text != forms[0].text for form in forms):
            raise CheckpointError(
                f"the experts of layer {layer} are stored in different ways, so they cannot be kept in equal slots: "
                "serve this model with --offload none (spec.offload.mode)"
            )
    roles = checkpoint.weights.roles
    sources = {roles[f"layers.{layer}.experts.0.down"].path for layer in range(shape.num_layers)}
    return ExpertLayout(tuple(forms[0] for forms in layers), num_experts, tuple(sorted(sources)))


def _form(checkpoint: Checkpoint, prefix: str, dtype: torch.dtype, native: NativeKernels | None) -> ExpertForm:
    entries = {name: checkpoint.weights.roles[f"{prefix}.{name}"] for name in ("gate", "up", "down")}
    shares_storage = entries["gate"].storage == entries["up"].storage
    groups: list[tuple[str, ...]] = [("gate", "up")] if shares_storage else [("gate",), ("up",)]
    parts: list[Part] = []
    at = 0
    for names in [*groups, ("down",)]:
        storage, num_columns = entries[names[0]].storage, entries[names[0]].shape[1]
        num_rows = sum(entries[name].shape[0] for name in names)
        name = choose_form(storage, num_rows, CPU, dtype, native)
        form = MatrixForm(name, storage, (num_rows, num_columns), dtype, native if name == "native" else None)
        parts.append(Part(names, form, at))
        at = -(-(at + form.num_bytes) // LINE_BYTES) * LINE_BYTES
    return ExpertForm(tuple(parts), checkpoint.architecture.activation)


def _bytes_of(part: Part, data: torch.Tensor) -> torch.Tensor:
    return data[part.offset : part.offset + part.form.num_bytes]


def _stacked(parts: Sequence[Matrix]) -> Matrix:
    return parts[0] if len(parts) == 1 else StackedMatrix(tuple(parts))
