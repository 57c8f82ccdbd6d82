"""Triton's products give the specification's for every storage, of one matrix and of chosen experts."""

import pytest
import torch

from kernels.random_weights import random_weights
from kernels.triton_device import DEVICE
from plimsoll_runtime.kernels import reference
from plimsoll_runtime.kernels.stored import STORAGES, StoredTensor
from plimsoll_runtime.kernels.triton_product import (
    FEW_ROWS,
    MANY_ROWS,
    ExpertBank,
    TritonMatrix,
    project_pairs,
    route_pairs,
)

QUANTIZED = [name for name, storage in STORAGES.items() if storage.group_weights > 1]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3}
"""Of a product relative to the largest of its matrix."""


def columns_of(name: str) -> int:
    """More than one group of the storage, and no multiple of the kernel's tile where a group is smaller than it."""
    return max(2 * STORAGES[name].group_weights, 96)


def inputs(num_rows: int, num_columns: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(num_rows)
    return torch.randn(num_rows, num_columns, generator=generator).to(DEVICE, dtype)


def assert_near(output: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert output.dtype == dtype
    torch.testing.assert_close(output.float(), expected, rtol=0, atol=TOLERANCE[dtype] * float(expected.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", QUANTIZED)
def test_one_matrix(name: str, dtype: torch.dtype) -> None:
    stored = random_weights(name, 33, columns_of(name)).to(DEVICE)
    matrix = TritonMatrix(stored, dtype)
    for num_tokens in (1, FEW_ROWS + 1):
        values = inputs(num_tokens, stored.num_columns, dtype)
        assert_near(matrix.project(values), reference.linear(values, stored), dtype)
    rows = torch.tensor([3, 0, 32], device=DEVICE)
    assert torch.equal(matrix.take_rows(rows), reference.dequantize(stored)[rows].to(dtype))
    assert matrix.num_bytes == stored.num_bytes


def test_an_input_that_lies_apart() -> None:
    """A step's matrices share rows: the input of one may be columns of another's output."""
    stored = random_weights("Q4_1", 5, 32).to(DEVICE)
    wide = inputs(3, 64, torch.float32)
    assert_near(
        TritonMatrix(stored, torch.float32).project(wide[:, 32:]), reference.linear(wide[:, 32:], stored), torch.float32
    )


def make_bank(name: str, num_experts: int, num_rows: int, dtype: torch.dtype) -> tuple[ExpertBank, list[StoredTensor]]:
    experts = [random_weights(name, num_rows, columns_of(name), seed).to(DEVICE) for seed in range(num_experts)]
    data = torch.stack([expert.data_RB for expert in experts])
    return ExpertBank(STORAGES[name], columns_of(name), data, dtype), experts


CHOICES = {
    "few": torch.tensor([[2, 0], [2, 4], [0, 2]]),
    "one-token": torch.tensor([[4, 1]]),
    "all-the-same": torch.tensor([[3, 2]] * (FEW_ROWS + 3)),
    "many": torch.stack([torch.randperm(5, generator=torch.Generator().manual_seed(i))[:2] for i in range(60)]),
}


@pytest.mark.parametrize("chosen", CHOICES.values(), ids=list(CHOICES))
@pytest.mark.parametrize(("name", "dtype"), [("Q4_0", torch.float32), ("Q4_K", torch.float32), ("F16", torch.float16)])
def test_chosen_experts(name: str, dtype: torch.dtype, chosen: torch.Tensor) -> None:
    bank, experts = make_bank(name, 5, 34, dtype)
    values = inputs(chosen.shape[0], bank.num_columns, dtype)
    routing = route_pairs(chosen.to(DEVICE), 5)
    assert routing.tile_rows == (MANY_ROWS if chosen.numel() > 80 else FEW_ROWS)
    products = project_pairs(values, bank, routing).view(*chosen.shape, -1)
    for expert, stored in enumerate(experts):
        tokens, places = (chosen == expert).nonzero(as_tuple=True)
        if tokens.numel():
            assert_near(products[tokens, places], reference.linear(values[tokens], stored), dtype)


def test_inputs_of_pairs() -> None:
    """The second product of an expert has an input of its own for each pair."""
    bank, experts = make_bank("Q8_0", 3, 7, torch.float32)
    chosen = torch.tensor([[2, 0], [0, 1]])
    values = inputs(4, bank.num_columns, torch.float32)
    products = project_pairs(values, bank, route_pairs(chosen.to(DEVICE), 3))
    for pair, expert in enumerate(chosen.flatten().tolist()):
        expected = reference.linear(values[pair : pair + 1], experts[expert])
        torch.testing.assert_close(products[pair : pair + 1], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("num_tokens", [1, 7, 40, 200])
def test_every_pair_has_one_place(num_tokens: int) -> None:
    generator = torch.Generator().manual_seed(num_tokens)
    chosen = torch.stack([torch.randperm(6, generator=generator)[:3] for _ in range(num_tokens)]).to(DEVICE)
    routing = route_pairs(chosen, 6)
    places = routing.pair_of_place.view(-1, routing.tile_rows).tolist()
    assert sorted(pair for tile in places for pair in tile if pair >= 0) == list(range(chosen.numel()))
    for tile, expert in zip(places, routing.expert_of_tile.tolist(), strict=True):
        assert {int(chosen.flatten()[pair]) for pair in tile if pair >= 0} <= {expert}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", QUANTIZED)
def test_real_sizes(name: str, dtype: torch.dtype) -> None:
    if DEVICE.type != "cuda":
        pytest.skip("gpu: needs a CUDA device")
    stored = random_weights(name, 768, 2048).to(DEVICE)
    for num_tokens in (1, 8, 300):
        values = inputs(num_tokens, 2048, dtype)
        output, expected = TritonMatrix(stored, dtype).project(values).float(), reference.linear(values, stored)
        assert float((output - expected).norm() / expected.norm()) < 1e-2
