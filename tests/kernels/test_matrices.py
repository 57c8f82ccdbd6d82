"""Every form of a weight matrix computes what the specification says, keeps no more than the file, and treats a row
alike whatever else is in the batch."""

import pytest
import torch

from kernels.random_weights import random_weights
from plimsoll_runtime.kernels import reference
from plimsoll_runtime.kernels.cpu import MAX_BAG_TOKENS, GroupedMatrix
from plimsoll_runtime.kernels.dispatch import make_matrix, stack_matrices
from plimsoll_runtime.kernels.matrix import DenseMatrix, StackedMatrix, TiledMatrix
from plimsoll_runtime.kernels.stored import STORAGES

CPU = torch.device("cpu")
SIZES = [1, 3, MAX_BAG_TOKENS, MAX_BAG_TOKENS + 1, 40]
EXPECTED_FORM = {"F32": DenseMatrix, "Q4_0": GroupedMatrix, "Q4_1": GroupedMatrix, "Q8_0": GroupedMatrix}


@pytest.mark.parametrize("num_tokens", SIZES)
@pytest.mark.parametrize("name", STORAGES)
def test_product_equals_the_specification(name: str, num_tokens: int) -> None:
    stored = random_weights(name, 70, 512)
    matrix = make_matrix(stored, CPU, torch.float32)
    assert isinstance(matrix, EXPECTED_FORM.get(name, TiledMatrix))
    values = torch.randn(num_tokens, 512, generator=torch.Generator().manual_seed(num_tokens))
    torch.testing.assert_close(matrix.project(values), reference.linear(values, stored), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", STORAGES)
def test_rows_equal_the_specification_exactly(name: str) -> None:
    stored = random_weights(name, 70, 256)
    rows = torch.tensor([69, 0, 1, 34, 34])
    taken = make_matrix(stored, CPU, torch.float32).take_rows(rows)
    assert torch.equal(taken, reference.dequantize(stored)[rows])


@pytest.mark.parametrize("name", STORAGES)
def test_a_row_does_not_depend_on_its_neighbours(name: str) -> None:
    matrix = make_matrix(random_weights(name, 70, 256), CPU, torch.float32)
    values = torch.randn(40, 256, generator=torch.Generator().manual_seed(0))
    together = matrix.project(values)
    alone = torch.cat([matrix.project(values[row : row + 1]) for row in range(40)])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", STORAGES)
def test_memory_kept_is_memory_stored(name: str) -> None:
    stored = random_weights(name, 70, 256)
    assert make_matrix(stored, CPU, torch.float32).num_bytes <= stored.num_bytes + 8 * stored.num_columns


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1"])
def test_an_odd_number_of_outputs_is_computed_without_packing(name: str) -> None:
    stored = random_weights(name, 71, 64)
    values = torch.randn(2, 64)
    matrix = make_matrix(stored, CPU, torch.float32)
    torch.testing.assert_close(matrix.project(values), reference.linear(values, stored), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("names", "form"), [(["Q4_1", "Q4_1"], GroupedMatrix), (["Q4_K", "Q6_K", "F32"], StackedMatrix)]
)
def test_stacked_weights_come_out_side_by_side(names: list[str], form: type) -> None:
    parts = [random_weights(name, 32 + 2 * index, 256, seed=index) for index, name in enumerate(names)]
    stack = stack_matrices(parts, CPU, torch.float32)
    assert isinstance(stack, form)
    values = torch.randn(3, 256)
    expected = torch.cat([reference.linear(values, part) for part in parts], -1)
    torch.testing.assert_close(stack.project(values), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", STORAGES)
def test_half_precision_activations_come_out_in_their_dtype(name: str, dtype: torch.dtype) -> None:
    stored = random_weights(name, 32, 256)
    values = torch.randn(3, 256).to(dtype)
    product = make_matrix(stored, CPU, dtype).project(values)
    assert product.dtype == dtype
    torch.testing.assert_close(product.float(), reference.linear(values, stored), rtol=0.05, atol=0.05)
