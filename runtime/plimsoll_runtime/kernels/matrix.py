"""A weight matrix ready to compute with, on any device.

Owns the interface `Matrix` and its two device-independent forms: weights that already have the dtype of the
activations, and weights that stay as stored and are decoded a tile of rows at a time. In: a `StoredTensor`. It does
not choose between forms (dispatch.py does). Invariant: what a matrix keeps in memory is `num_bytes`, and a product
needs at most one tile beside its result.

Shapes: T tokens, R rows (outputs), C columns (inputs).
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional

from plimsoll_runtime.kernels.reference import dequantize
from plimsoll_runtime.kernels.stored import FLOAT_DTYPES, StoredTensor

TILE_WEIGHTS = 1 << 19
"""Weights decoded at a time: 2 MiB of float32, which a core's second-level cache about holds."""


class Matrix(Protocol):
    """Products and rows come out in the dtype that the matrix was made for; a row depends on its own input alone."""

    @property
    def num_bytes(self) -> int:
        """What the matrix keeps in memory."""
        ...

    def project(self, input_TC: torch.Tensor) -> torch.Tensor:
        """`[T, C] @ [R, C]^T -> [T, R]`."""
        ...

    def take_rows(self, rows_T: torch.Tensor) -> torch.Tensor:
        """The given rows (int64) as `[T, C]`: an embedding lookup."""
        ...


@dataclass(frozen=True, slots=True)
class DenseMatrix:
    """Weights in the dtype of the activations."""

    weight_RC: torch.Tensor

    @property
    def num_bytes(self) -> int:
        return self.weight_RC.nbytes

    def project(self, input_TC: torch.Tensor) -> torch.Tensor:
        return functional.linear(input_TC, self.weight_RC)

    def take_rows(self, rows_T: torch.Tensor) -> torch.Tensor:
        return self.weight_RC.index_select(0, rows_T)


@dataclass(frozen=True, slots=True)
class TiledMatrix:
    """Weights as stored, decoded by tiles of rows into `dtype` for each product."""

    stored: StoredTensor
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return self.stored.num_bytes

    def project(self, input_TC: torch.Tensor) -> torch.Tensor:
        num_rows, num_columns = self.stored.shape
        rows_per_tile = max(1, TILE_WEIGHTS // num_columns)
        output_TR = input_TC.new_empty((input_TC.shape[0], num_rows))
        for start in range(0, num_rows, rows_per_tile):
            tile_RC = dequantize(self.stored.slice_rows(start, start + rows_per_tile)).to(self.dtype)
            output_TR[:, start : start + rows_per_tile] = functional.linear(input_TC, tile_RC)
        return output_TR

    def take_rows(self, rows_T: torch.Tensor) -> torch.Tensor:
        return dequantize(self.stored.take_rows(rows_T)).to(self.dtype)


@dataclass(frozen=True, slots=True)
class StackedMatrix:
    """Matrices of different storage that share their input, one below the other."""

    parts: tuple[Matrix, ...]

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts)

    def project(self, input_TC: torch.Tensor) -> torch.Tensor:
        return torch.cat([part.project(input_TC) for part in self.parts], -1)

    def take_rows(self, rows_T: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("a stack of matrices is never an embedding")


def dense_matrix(stored: StoredTensor) -> DenseMatrix:
    """A matrix of plain numbers that shares the memory of the stored bytes."""
    return DenseMatrix(stored.data_RB.view(FLOAT_DTYPES[stored.storage.name]).view(stored.shape))
