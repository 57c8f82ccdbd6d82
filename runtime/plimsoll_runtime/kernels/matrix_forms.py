"""How a weight lies in memory where it is computed with: which form, of how many bytes, from stored bytes and back.

Owns the choice of a form and the two ways through it: `write` puts stored weights into bytes of the caller's, `open`
makes a `Matrix` over such bytes without copying them. So bytes written once, to a file too, are computed with wherever
they are brought, with the same result bit for bit as a matrix that `dispatch.make_matrix` made of the same weights. It
knows no files and no models. Invariant: a form depends on storage, shape, dtype and device alone, and a 4-bit weight
stays one of 4 bits.
"""

from dataclasses import dataclass
from typing import Literal, assert_never

import torch

from plimsoll_runtime.kernels.cpu import can_group, group_into, grouped_bytes, open_groups
from plimsoll_runtime.kernels.matrix import Matrix, TiledMatrix, dense_matrix
from plimsoll_runtime.kernels.native_library import LAYOUT_VERSION, NATIVE_STORAGES, NativeKernels, packed_bytes
from plimsoll_runtime.kernels.stored import FLOAT_DTYPES, Storage, StoredTensor, stored_bytes

FormName = Literal["dense", "tiled", "grouped", "native"]


def choose_form(
    storage: Storage, num_rows: int, device: torch.device, dtype: torch.dtype, native: NativeKernels | None
) -> FormName:
    """What computes with weights of this storage, for activations of `dtype`."""
    if FLOAT_DTYPES.get(storage.name) == dtype:
        return "dense"
    if device.type == "cpu" and native is not None and storage.name in NATIVE_STORAGES:
        return "native"
    if device.type == "cpu" and can_group(storage, num_rows):
        return "grouped"
    return "tiled"


@dataclass(frozen=True, slots=True)
class MatrixForm:
    """One kind of matrix on a processor. `native` is there for the native form alone."""

    name: FormName
    storage: Storage
    shape: tuple[int, int]
    dtype: torch.dtype
    native: NativeKernels | None = None

    @property
    def text(self) -> str:
        """What must be equal for bytes that were written to be opened."""
        version = f"-{LAYOUT_VERSION}" if self.name == "native" else ""
        return f"{self.name}{version} {self.storage.name} {self.shape[0]}x{self.shape[1]}"

    @property
    def num_bytes(self) -> int:
        match self.name:
            case "native":
                return packed_bytes(self.storage, self.shape)
            case "grouped":
                return grouped_bytes(self.storage, self.shape)
            case "dense" | "tiled":
                return stored_bytes(self.storage, self.shape)
            case _:
                assert_never(self.name)

    def write(self, stored: StoredTensor, to: torch.Tensor) -> None:
        """`to`: `num_bytes` uint8."""
        match self.name:
            case "native":
                assert self.native is not None
                self.native.pack_into(stored, to)
            case "grouped":
                group_into(stored, to)
            case "dense" | "tiled":
                to.copy_(stored.data_RB.reshape(-1))
            case _:
                assert_never(self.name)

    def open(self, data: torch.Tensor) -> Matrix:
        """A matrix over bytes that `write` filled, which stay the caller's: what is written there next is what the
        matrix computes with from then on."""
        match self.name:
            case "native":
                assert self.native is not None
                return self.native.view(self.storage, self.shape, self.dtype, data)
            case "grouped":
                return open_groups(self.storage, self.shape, self.dtype, data)
            case "dense":
                return dense_matrix(self._stored(data))
            case "tiled":
                return TiledMatrix(self._stored(data), self.dtype)
            case _:
                assert_never(self.name)

    def _stored(self, data: torch.Tensor) -> StoredTensor:
        return StoredTensor(self.storage, self.shape, data.view(self.shape[0], -1))
