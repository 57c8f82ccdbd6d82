"""Which kernel computes: with a weight, by its storage, the device and the dtype of the activations; with a state.

Owns that choice alone. In: `StoredTensor`s, and the native kernels where there are any. Out: a `Matrix` on the device.
The gated delta rule has one implementation for every device, passed on from here so that no model needs to know.
Invariant: a choice changes speed and rounding, never memory much beyond the stored bytes. The native kernels round
activations to 8 bits, for every number of rows alike; torch's do not.
"""

from collections.abc import Sequence

import torch

from plimsoll_runtime.kernels.cpu import can_group, group_matrix
from plimsoll_runtime.kernels.gated_delta import advance_states, convolve_states
from plimsoll_runtime.kernels.matrix import Matrix, StackedMatrix, TiledMatrix, dense_matrix
from plimsoll_runtime.kernels.native_library import NATIVE_STORAGES, NativeKernels
from plimsoll_runtime.kernels.stored import FLOAT_DTYPES, StoredTensor, join_rows

__all__ = ["advance_states", "convolve_states", "make_matrix", "stack_matrices"]


def make_matrix(
    stored: StoredTensor, device: torch.device, dtype: torch.dtype, native: NativeKernels | None = None
) -> Matrix:
    """The matrix that computes with these weights on `device`, for activations of `dtype`."""
    if FLOAT_DTYPES.get(stored.storage.name) == dtype:
        return dense_matrix(stored.to(device))
    if device.type == "cpu" and native is not None and stored.storage.name in NATIVE_STORAGES:
        return native.pack(stored, dtype)
    if device.type == "cpu" and can_group(stored):
        return group_matrix(stored, dtype)
    return TiledMatrix(stored.to(device), dtype)


def stack_matrices(
    parts: Sequence[StoredTensor], device: torch.device, dtype: torch.dtype, native: NativeKernels | None = None
) -> Matrix:
    """One matrix for weights that share their input; its product is theirs side by side."""
    if len({part.storage.name for part in parts}) == 1:
        return make_matrix(join_rows(parts), device, dtype, native)
    return StackedMatrix(tuple(make_matrix(part, device, dtype, native) for part in parts))
