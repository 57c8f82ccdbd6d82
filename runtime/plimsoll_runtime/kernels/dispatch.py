"""Which kernel computes: with a weight, by its storage, the device and the dtype of the activations; with a state.

Owns the way from stored weights to a `Matrix` on the device (matrix_forms.py chooses its form). In: `StoredTensor`s,
and the native kernels where there are any, or Triton's (choice.py decides). The gated delta rule has one implementation
for every device, passed on from here so that no model needs to know. Invariant: a choice changes speed and rounding,
never memory much beyond the stored bytes. The native kernels round activations to 8 bits, for every number of rows
alike; the others do not.
"""

from collections.abc import Sequence
from typing import assert_never

import torch

from plimsoll_runtime.kernels.cpu import group_matrix
from plimsoll_runtime.kernels.gated_delta import advance_states, convolve_states
from plimsoll_runtime.kernels.matrix import Matrix, StackedMatrix, TiledMatrix, dense_matrix
from plimsoll_runtime.kernels.matrix_forms import choose_form
from plimsoll_runtime.kernels.native_library import NativeKernels
from plimsoll_runtime.kernels.stored import StoredTensor, join_rows

__all__ = ["advance_states", "convolve_states", "make_matrix", "stack_matrices"]


def make_matrix(
    stored: StoredTensor,
    device: torch.device,
    dtype: torch.dtype,
    native: NativeKernels | None = None,
    triton: bool = False,
) -> Matrix:
    """The matrix that computes with these weights on `device`, for activations of `dtype`."""
    form = choose_form(stored.storage, stored.num_rows, device, dtype, native)
    if triton and form != "dense":
        return _triton_matrix(stored.to(device), dtype)
    match form:
        case "dense":
            return dense_matrix(stored.to(device))
        case "native":
            assert native is not None
            return native.pack(stored, dtype)
        case "grouped":
            return group_matrix(stored, dtype)
        case "tiled":
            return TiledMatrix(stored.to(device), dtype)
        case _:
            assert_never(form)


def _triton_matrix(stored: StoredTensor, dtype: torch.dtype) -> Matrix:
    from plimsoll_runtime.kernels.triton_product import TritonMatrix  # noqa: PLC0415 (an optional dependency)

    return TritonMatrix(stored, dtype)


def stack_matrices(
    parts: Sequence[StoredTensor],
    device: torch.device,
    dtype: torch.dtype,
    native: NativeKernels | None = None,
    triton: bool = False,
) -> Matrix:
    """One matrix for weights that share their input; its product is theirs side by side."""
    if len({part.storage.name for part in parts}) == 1:
        return make_matrix(join_rows(parts), device, dtype, native, triton)
    return StackedMatrix(tuple(make_matrix(part, device, dtype, native, triton) for part in parts))
