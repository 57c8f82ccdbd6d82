"""The native products: near the specification, and the same bits for any number of rows, threads and instructions."""

import ctypes
import gc
import math
import os
import threading

import pytest
import torch

from kernels.random_weights import random_weights
from plimsoll_runtime.kernels import native_library as native_library_module
from plimsoll_runtime.kernels import reference
from plimsoll_runtime.kernels.choice import choose_for_processor
from plimsoll_runtime.kernels.dispatch import make_matrix, stack_matrices
from plimsoll_runtime.kernels.matrix import StackedMatrix
from plimsoll_runtime.kernels.native_library import (
    GENERIC,
    NATIVE_STORAGES,
    NativeError,
    NativeKernels,
    NativeMatrix,
    open_native,
)
from plimsoll_runtime.kernels.stored import STORAGES, Storage, StoredTensor

CPU = torch.device("cpu")
NAMES = sorted(NATIVE_STORAGES)
SIZES = [1, 2, 3, 5, 7, 8, 9, 16, 29, 131]
ODD_SHAPES = [(1, 32), (15, 96), (17, 160), (33, 608), (70, 512)]
"""Multiples of nothing but the storage's group; 131 rows are more than are quantized together."""

TOLERANCE = 0.008
"""Error of a product relative to its size (root mean square), for random weights and inputs. Rounding the inputs to
8 bits by groups of 32 gives 0.0054; a wrong group or scale gives 0.1 and more."""


@pytest.fixture
def native(instructions: str) -> NativeKernels:
    return open_native(3, instructions)


def _inputs(num_tokens: int, num_columns: int) -> torch.Tensor:
    return torch.randn(num_tokens, num_columns, generator=torch.Generator().manual_seed(num_tokens))


def _shapes(name: str) -> list[tuple[int, int]]:
    group = STORAGES[name].group_weights
    return [(rows, -(-columns // group) * group) for rows, columns in ODD_SHAPES]


def _error(product: torch.Tensor, expected: torch.Tensor) -> float:
    return float((product - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", NAMES)
def test_products_are_near_the_specification(name: str, native: NativeKernels) -> None:
    for num_rows, num_columns in _shapes(name):
        stored = random_weights(name, num_rows, num_columns)
        matrix = native.pack(stored, torch.float32)
        values = _inputs(131, num_columns)
        assert _error(matrix.project(values), reference.linear(values, stored)) < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_products_of_quantized_inputs_are_exact_up_to_float32(name: str, native: NativeKernels) -> None:
    stored = random_weights(name, 37, 512)
    codes = torch.randint(-127, 128, (5, 512), generator=torch.Generator().manual_seed(0)).float()
    codes[:, ::32] = 127  # so that every group's scale is a power of two, and nothing is rounded
    values = codes / 64
    expected = (values.double() @ reference.dequantize(stored).double().t()).float()
    torch.testing.assert_close(native.pack(stored, torch.float32).project(values), expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_is_the_same_bits_in_any_batch(name: str, native: NativeKernels) -> None:
    for num_rows, num_columns in _shapes(name):
        matrix = native.pack(random_weights(name, num_rows, num_columns), torch.float32)
        values = _inputs(131, num_columns)
        alone = torch.cat([matrix.project(row[None]) for row in values])
        for size in SIZES:
            assert torch.equal(matrix.project(values[-size:]), alone[-size:])


@pytest.mark.parametrize("name", NAMES)
def test_every_instruction_set_gives_the_same_bits(name: str, native: NativeKernels) -> None:
    stored = random_weights(name, 70, 512)
    values = _inputs(29, 512) * torch.logspace(-6, 6, 29)[:, None]
    plain = open_native(1, "generic").pack(stored, torch.float32).project(values)
    assert torch.equal(native.pack(stored, torch.float32).project(values), plain)


@pytest.mark.parametrize("name", NAMES)
def test_extreme_codes_do_not_overflow(name: str, instructions: str) -> None:
    """All codes at their largest with the largest inputs of either sign: 16-bit sums would wrap first."""
    for byte in (0, 255, 127, 128):
        stored = random_weights(name, 16, 256)
        scales = {"Q4_0": 2, "Q4_1": 4, "Q5_0": 2, "Q5_1": 4, "Q8_0": 2, "Q4_K": 4, "Q5_K": 4, "Q6_K": 0}[name]
        groups = stored.data_RB.view(-1, stored.storage.group_bytes)
        stop = 208 if name == "Q6_K" else stored.storage.group_bytes
        groups[:, scales:stop] = byte
        matrix = open_native(1, instructions).pack(stored, torch.float32)
        for sign in (1.0, -1.0):
            values = torch.full((9, 256), sign)
            torch.testing.assert_close(matrix.project(values), reference.linear(values, stored), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_threads", [-1, 0, 1, 2, 7, 4 * (os.cpu_count() or 1)])
def test_any_number_of_threads_gives_the_same_bits(num_threads: int, native_library: tuple[str, ...]) -> None:
    stored, values = random_weights("Q4_1", 333, 320), _inputs(21, 320)
    expected = open_native(1).pack(stored, torch.float32).project(values)
    native = open_native(num_threads)
    assert native.num_threads == max(1, num_threads)
    matrix = native.pack(stored, torch.float32)
    for _ in range(200):
        assert torch.equal(matrix.project(values), expected)


def test_two_callers_take_turns(native_library: tuple[str, ...]) -> None:
    matrix = open_native(2).pack(random_weights("Q8_0", 99, 64), torch.float32)
    rows = torch.arange(99)
    expected = matrix.take_rows(rows)
    seen: list[bool] = []

    def take_often() -> None:
        seen.extend(torch.equal(matrix.take_rows(rows), expected) for _ in range(200))

    threads = [threading.Thread(target=take_often) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 600


@pytest.mark.parametrize("name", NAMES)
def test_rows_equal_the_specification_exactly(name: str, native_library: tuple[str, ...]) -> None:
    stored = random_weights(name, 71, 512)
    rows = torch.tensor([70, 0, 1, 34, 34, 16, 15])
    taken = open_native(2).pack(stored, torch.float32).take_rows(rows)
    assert torch.equal(taken, reference.dequantize(stored)[rows])


@pytest.mark.parametrize("row", [-1, 71])
def test_a_row_outside_is_refused(row: int, native_library: tuple[str, ...]) -> None:
    matrix = open_native(1).pack(random_weights("Q4_0", 71, 64), torch.float32)
    with pytest.raises(IndexError, match="of a matrix of 71"):
        matrix.take_rows(torch.tensor([0, row]))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_so(value: float, native: NativeKernels) -> None:
    """The engine fails a sequence whose logits are not finite; quantizing must not hide them."""
    matrix = native.pack(random_weights("Q4_1", 20, 64), torch.float32)
    values = _inputs(5, 64)
    values[2, 40] = value
    finite = matrix.project(values).isfinite().all(-1)
    assert finite.tolist() == [True, True, False, True, True]


def test_zeros_and_tiny_numbers_give_finite_products(native: NativeKernels) -> None:
    matrix = native.pack(random_weights("Q6_K", 20, 256), torch.float32)
    for size in (0.0, 1e-45, 1e-38, 1e-31):
        assert matrix.project(torch.full((2, 256), size)).abs().max() < 1e-20


@pytest.mark.parametrize("name", NAMES)
def test_memory_kept_is_memory_stored(name: str, native_library: tuple[str, ...]) -> None:
    """Only the last rows are filled up, to 16."""
    for num_rows, rows_kept in ((64, 64), (65, 80)):
        stored = random_weights(name, num_rows, 512)
        kept = open_native(1).pack(stored, torch.float32).num_bytes
        assert kept == stored.num_bytes // num_rows * rows_kept


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_activations_come_out_in_their_dtype(
    dtype: torch.dtype, native_library: tuple[str, ...]
) -> None:
    stored = random_weights("Q4_1", 32, 256)
    matrix = make_matrix(stored, CPU, dtype, open_native(1))
    assert isinstance(matrix, NativeMatrix)
    values = _inputs(3, 256).to(dtype)
    product = matrix.project(values)
    assert (product.dtype, matrix.take_rows(torch.tensor([0])).dtype) == (dtype, dtype)
    assert _error(product.float(), reference.linear(values, stored)) < 0.02


def test_stacked_weights_come_out_side_by_side(native_library: tuple[str, ...]) -> None:
    native = open_native(2)
    values = _inputs(3, 256)
    for names, form in ((("Q4_1", "Q4_1", "Q4_1"), NativeMatrix), (("Q4_K", "Q6_K", "F32"), StackedMatrix)):
        parts = [random_weights(name, 33 + index, 256, seed=index) for index, name in enumerate(names)]
        stack = stack_matrices(parts, CPU, torch.float32, native)
        assert isinstance(stack, form)
        expected = torch.cat([reference.linear(values, part) for part in parts], -1)
        assert _error(stack.project(values), expected) < TOLERANCE


def test_handles_are_freed_in_any_order(native_library: tuple[str, ...]) -> None:
    native = open_native(2)
    matrix = native.pack(random_weights("Q4_0", 16, 64), torch.float32)
    del native
    gc.collect()
    assert matrix.project(_inputs(1, 64)).shape == (1, 16)


def test_a_missing_instruction_set_is_refused_by_name(native_library: tuple[str, ...]) -> None:
    with pytest.raises(NativeError, match=r"no avx1024; it has generic"):
        open_native(1, "avx1024")


def test_a_storage_the_library_does_not_know_is_refused(native_library: tuple[str, ...]) -> None:
    stored = StoredTensor(Storage("Q9_9", 32, 32), (1, 32), torch.zeros(1, 32, dtype=torch.uint8))
    with pytest.raises(NativeError, match="Q9_9"):
        open_native(1).pack(stored, torch.float32)


def test_a_library_that_cannot_be_opened_leaves_torch(
    native_library: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str) -> ctypes.CDLL:
        raise OSError("wrong ELF class")

    monkeypatch.setattr(ctypes, "CDLL", fail)
    choice = choose_for_processor(2, {"Q4_1"})
    assert choice.native is None
    assert "wrong ELF class" in str(choice.reason)


def test_a_library_of_other_sources_is_not_called(
    native_library: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its structs may have other fields than those that Python fills."""
    monkeypatch.setattr(native_library_module, "source_hash", lambda: "0123456789abcdef")
    choice = choose_for_processor(2, {"Q4_1"})
    assert choice.native is None
    assert str(choice.reason).endswith("was not made of the sources beside it: run make native")
    with pytest.raises(NativeError, match="make native"):
        open_native(1, GENERIC)
