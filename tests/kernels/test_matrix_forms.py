"""Weights written in a form and opened again compute, bit for bit, what the matrix of the resident model computes."""

import hashlib

import pytest
import torch

from kernels.random_weights import random_weights
from plimsoll_runtime.kernels.dispatch import make_matrix
from plimsoll_runtime.kernels.matrix_forms import FormName, MatrixForm, choose_form
from plimsoll_runtime.kernels.native_library import LAYOUT_VERSION, NATIVE_STORAGES, NativeKernels, open_native
from plimsoll_runtime.kernels.stored import FLOAT_DTYPES, STORAGES, stored_bytes

CPU = torch.device("cpu")
SHAPE = (40, 512)
LAYOUT_HASH = "ac22f8acb5036ad6"
"""Of all storages in the layout of LAYOUT_VERSION: who changes the bytes raises the version, since packs are files."""


@pytest.fixture
def native(native_library: tuple[str, ...]) -> NativeKernels:
    return open_native(2)


def write(form: MatrixForm) -> torch.Tensor:
    """The form's bytes between others, so that one too many would show."""
    data = torch.full((form.num_bytes + 128,), 77, dtype=torch.uint8)
    form.write(random_weights(form.storage.name, *form.shape), data[64 : 64 + form.num_bytes])
    assert data[:64].eq(77).all()
    assert data[64 + form.num_bytes :].eq(77).all()
    return data[64 : 64 + form.num_bytes]


def check(form: MatrixForm) -> None:
    matrix = form.open(write(form))
    expected = make_matrix(random_weights(form.storage.name, *form.shape), CPU, form.dtype, form.native)
    for num_tokens in (1, 3, 20):
        values = torch.randn(num_tokens, form.shape[1], generator=torch.Generator().manual_seed(num_tokens))
        assert torch.equal(matrix.project(values.to(form.dtype)), expected.project(values.to(form.dtype)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", STORAGES)
def test_without_the_library(name: str, dtype: torch.dtype) -> None:
    storage = STORAGES[name]
    form = MatrixForm(choose_form(storage, SHAPE[0], CPU, dtype, None), storage, SHAPE, dtype)
    check(form)
    overhead = 8 * SHAPE[1] if form.name == "grouped" else 0
    assert form.num_bytes <= stored_bytes(storage, SHAPE) + overhead, "a weight of 4 bits stays one of 4 bits"


@pytest.mark.parametrize("name", sorted(NATIVE_STORAGES))
def test_with_the_library(name: str, native: NativeKernels) -> None:
    """40 rows are two panels and a half: the last one is filled up."""
    storage = STORAGES[name]
    form = MatrixForm(choose_form(storage, SHAPE[0], CPU, torch.float32, native), storage, SHAPE, torch.float32, native)
    assert form.name == "native"
    assert form.num_bytes == native.pack(random_weights(name, *SHAPE), torch.float32).num_bytes
    check(form)


def test_bytes_that_change_are_computed_with(native: NativeKernels) -> None:
    """A slot of the expert cache holds one expert after the other under one matrix."""
    kinds: list[tuple[FormName, str]] = [("native", "Q4_K"), ("grouped", "Q4_1"), ("tiled", "Q6_K"), ("dense", "F32")]
    values = torch.randn(2, 512, generator=torch.Generator().manual_seed(0))
    for name, storage in kinds:
        form = MatrixForm(name, STORAGES[storage], SHAPE, torch.float32, native if name == "native" else None)
        data = write(form)
        matrix = form.open(data)
        before = matrix.project(values)
        other = random_weights(storage, SHAPE[0], SHAPE[1], seed=9)
        form.write(other, data)
        assert torch.equal(matrix.project(values), make_matrix(other, CPU, torch.float32, form.native).project(values))
        assert not torch.equal(matrix.project(values), before)


def test_the_layout_in_files_has_the_version_that_it_says(native: NativeKernels) -> None:
    digest = hashlib.sha256()
    for name in sorted(NATIVE_STORAGES):
        form = MatrixForm("native", STORAGES[name], SHAPE, torch.float32, native)
        digest.update(write(form).numpy().tobytes())
    assert (LAYOUT_VERSION, digest.hexdigest()[:16]) == (1, LAYOUT_HASH)


def test_floats_of_another_dtype_stay_as_stored() -> None:
    for name, dtype in FLOAT_DTYPES.items():
        other = torch.float32 if dtype != torch.float32 else torch.float16
        assert choose_form(STORAGES[name], 4, CPU, other, None) == "tiled"
        assert choose_form(STORAGES[name], 4, CPU, dtype, None) == "dense"
