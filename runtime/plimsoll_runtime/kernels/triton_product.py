"""Products with weights as they are stored, on a CUDA device: of one matrix, or of the experts that each token chose.

Owns one kernel, which decodes a tile of weights in registers (`kernels/reference.py` has the meaning of the bytes), and
the grouping of (token, expert) pairs into tiles of one expert. In: activations, stored bytes, chosen experts. Out:
products in the dtype of the activations. It knows no layers. Invariants: weights stay as stored, and nothing decoded is
ever written to memory; nothing waits for the device, whatever the tokens chose; a row's result depends on its own
input and expert.

Shapes: T tokens, A experts of one token, X experts of a bank, R rows (outputs), C columns (inputs), M rows of one tile
of inputs; B bytes of one row.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from plimsoll_runtime.kernels.reference import dequantize
from plimsoll_runtime.kernels.stored import FLOAT_DTYPES, Storage, StoredTensor

FEW_ROWS, MANY_ROWS = 16, 64
"""Inputs of one tile; a device's matrix units take no fewer than 16."""

TILE_OUTPUTS = 32
TILE_COLUMNS = 64


@dataclass(frozen=True, slots=True)
class ExpertBank:
    """`[R, C]` matrices of one storage, one behind the other: `data_XRB` (uint8). `dtype`: of the activations."""

    storage: Storage
    num_columns: int
    data_XRB: torch.Tensor
    dtype: torch.dtype

    @property
    def num_experts(self) -> int:
        return self.data_XRB.shape[0]

    @property
    def num_rows(self) -> int:
        return self.data_XRB.shape[1]


@dataclass(frozen=True, slots=True)
class Routing:
    """Pairs of a token and an expert, `pair = token * A + place`, in tiles of one expert each.

    `pair_of_place` (`[tiles * tile_rows]`, int64) is -1 where a tile is not full; `expert_of_tile` is X for a tile of
    no expert: how many tiles there are is known on the device alone."""

    pair_of_place: torch.Tensor
    expert_of_tile: torch.Tensor
    tile_rows: int
    num_pairs: int


def route_pairs(chosen_TA: torch.Tensor, num_experts: int) -> Routing:
    """The tiles for `chosen_TA` (int64), for all banks of one layer."""
    chosen_N, num_pairs = chosen_TA.flatten(), chosen_TA.numel()
    tile_rows = FEW_ROWS if num_pairs <= FEW_ROWS * num_experts else MANY_ROWS
    num_tiles = min(num_pairs, num_pairs // tile_rows + num_experts)
    count_X = torch.zeros(num_experts, dtype=torch.int64, device=chosen_N.device)
    count_X.index_add_(0, chosen_N, torch.ones_like(chosen_N))
    filled_X = (count_X + tile_rows - 1) // tile_rows * tile_rows
    end_X = filled_X.cumsum(0)
    pair_N = chosen_N.argsort(stable=True)
    expert_N = chosen_N[pair_N]
    before_X = end_X - filled_X - (count_X.cumsum(0) - count_X)
    place_N = torch.arange(num_pairs, device=chosen_N.device) + before_X[expert_N]
    places = torch.full((num_tiles * tile_rows,), -1, dtype=torch.int64, device=chosen_N.device)
    first_rows = torch.arange(0, num_tiles * tile_rows, tile_rows, device=chosen_N.device)
    return Routing(
        pair_of_place=places.scatter_(0, place_N, pair_N),
        expert_of_tile=torch.searchsorted(end_X, first_rows, right=True),
        tile_rows=tile_rows,
        num_pairs=num_pairs,
    )


def project_pairs(input_NC: torch.Tensor, bank: ExpertBank, routing: Routing) -> torch.Tensor:
    """`[pairs, R]`: every pair's input times its expert's matrix. Inputs are those of all pairs, or of all tokens."""
    values_NC = input_NC.contiguous()
    output_NR = values_NC.new_empty((routing.num_pairs, bank.num_rows))
    per_input = routing.num_pairs // values_NC.shape[0]
    _multiply(values_NC, bank, output_NR, routing, per_input)
    return output_NR


@dataclass(frozen=True, slots=True)
class TritonMatrix:
    """A `Matrix` of quantized weights as stored."""

    stored: StoredTensor
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return self.stored.num_bytes

    def project(self, input_TC: torch.Tensor) -> torch.Tensor:
        values_TC = input_TC.contiguous()
        bank = ExpertBank(self.stored.storage, self.stored.num_columns, self.stored.data_RB[None], self.dtype)
        output_TR = values_TC.new_empty((values_TC.shape[0], bank.num_rows))
        _multiply(values_TC, bank, output_TR, None, 1)
        return output_TR

    def take_rows(self, rows_T: torch.Tensor) -> torch.Tensor:
        return dequantize(self.stored.take_rows(rows_T)).to(self.dtype)


def _multiply(
    input_NC: torch.Tensor, bank: ExpertBank, output_NR: torch.Tensor, routing: Routing | None, per_input: int
) -> None:
    num_outputs = output_NR.shape[0]
    if routing is None:
        tile_rows = FEW_ROWS if num_outputs <= FEW_ROWS else MANY_ROWS
        num_tiles, experts, pairs = triton.cdiv(num_outputs, tile_rows), input_NC, input_NC
    else:
        tile_rows, num_tiles = routing.tile_rows, routing.expert_of_tile.numel()
        experts, pairs = routing.expert_of_tile, routing.pair_of_place
    is_float = bank.storage.name in FLOAT_DTYPES
    data = bank.data_XRB
    codes = data.view(FLOAT_DTYPES[bank.storage.name]) if is_float else data
    with torch.cuda.device_of(data):
        _product_kernel[(num_tiles, triton.cdiv(bank.num_rows, TILE_OUTPUTS))](
            input_NC, codes, codes if is_float else data.view(torch.float16), output_NR, experts, pairs, num_outputs,
            bank.num_experts, bank.num_rows, bank.num_columns, codes.shape[2], per_input,
            IS_ROUTED=routing is not None, STORAGE="float" if is_float else bank.storage.name,
            PARTS=max(1, bank.storage.group_weights // 32), GROUP_BYTES=bank.storage.group_bytes, BLOCK_M=tile_rows,
            BLOCK_R=TILE_OUTPUTS, BLOCK_C=TILE_COLUMNS,
        )  # fmt: skip


@triton.jit
def _product_kernel(
    input_ptr, codes_ptr, halves_ptr, output_ptr, expert_ptr, pair_ptr, num_outputs, num_experts, num_rows, num_columns,
    row_size, per_input, IS_ROUTED: tl.constexpr, STORAGE: tl.constexpr, PARTS: tl.constexpr, GROUP_BYTES: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """One program for a tile of inputs and some outputs. `row_size`: a row of weights, in elements of `codes_ptr`."""
    tile = tl.program_id(0)
    pair_M = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    expert = 0
    if IS_ROUTED:
        expert = tl.load(expert_ptr + tile)
        if expert >= num_experts:
            return
        pair_M = tl.load(pair_ptr + pair_M)
    inside_M = (pair_M >= 0) & (pair_M < num_outputs)
    pair_M = tl.where(inside_M, pair_M, 0).to(tl.int64)
    row_R = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside_R = row_R < num_rows
    start_R = (tl.zeros((BLOCK_R,), tl.int64) + expert) * num_rows * row_size + row_R.to(tl.int64) * row_size
    input_M = pair_M // per_input * num_columns
    sum_MR = tl.zeros((BLOCK_M, BLOCK_R), tl.float32)
    for first in range(0, num_columns, BLOCK_C):
        column_C = first + tl.arange(0, BLOCK_C)
        inside_C = column_C < num_columns
        inside_MC = inside_M[:, None] & inside_C[None, :]
        value_MC = tl.load(input_ptr + input_M[:, None] + column_C[None, :], mask=inside_MC, other=0.0)
        inside_RC = inside_R[:, None] & inside_C[None, :]
        weight_RC = _decode(codes_ptr, halves_ptr, start_R, column_C, inside_RC, STORAGE, PARTS, GROUP_BYTES)
        sum_MR += tl.dot(value_MC, tl.trans(weight_RC.to(value_MC.dtype)), input_precision="ieee")
    target_MR = pair_M[:, None] * num_rows + row_R[None, :]
    tl.store(output_ptr + target_MR, sum_MR.to(output_ptr.dtype.element_ty), mask=inside_M[:, None] & inside_R[None, :])


@triton.jit
def _decode(
    codes_ptr,
    halves_ptr,
    start_R,
    column_C,
    inside_RC,
    STORAGE: tl.constexpr,
    PARTS: tl.constexpr,
    GROUP_BYTES: tl.constexpr,
):
    """Weights as float32. A column is number `place` of the 32 of its part; a group has PARTS of them."""
    group_RC = start_R[:, None] + (column_C // (32 * PARTS) * GROUP_BYTES)[None, :]
    part = (column_C // 32 % PARTS)[None, :]
    place = (column_C % 32)[None, :]
    if STORAGE == "float":
        weight_RC = tl.load(codes_ptr + start_R[:, None] + column_C[None, :], mask=inside_RC, other=0.0).to(tl.float32)
    elif STORAGE == "Q8_0":
        code_RC = _byte(codes_ptr, group_RC + 2 + place, inside_RC).to(tl.int8)
        weight_RC = _half(halves_ptr, group_RC, inside_RC) * code_RC.to(tl.float32)
    elif STORAGE == "Q4_0":
        code_RC = _nibble(codes_ptr, group_RC + 2, place, inside_RC)
        weight_RC = _half(halves_ptr, group_RC, inside_RC) * (code_RC - 8).to(tl.float32)
    elif STORAGE == "Q4_1":
        code_RC = _nibble(codes_ptr, group_RC + 4, place, inside_RC)
        weight_RC = _scaled(halves_ptr, group_RC, code_RC, inside_RC)
    elif STORAGE == "Q5_0":
        code_RC = _nibble(codes_ptr, group_RC + 6, place, inside_RC)
        code_RC = code_RC | _high_bit(codes_ptr, group_RC + 2, place, inside_RC)
        weight_RC = _half(halves_ptr, group_RC, inside_RC) * (code_RC - 16).to(tl.float32)
    elif STORAGE == "Q5_1":
        code_RC = _nibble(codes_ptr, group_RC + 8, place, inside_RC)
        code_RC = code_RC | _high_bit(codes_ptr, group_RC + 4, place, inside_RC)
        weight_RC = _scaled(halves_ptr, group_RC, code_RC, inside_RC)
    elif STORAGE == "Q4_K":
        code_RC = _byte(codes_ptr, group_RC + 16 + part // 2 * 32 + place, inside_RC) >> (part % 2 * 4) & 15
        weight_RC = _k_scaled(codes_ptr, halves_ptr, group_RC, part, code_RC, inside_RC)
    elif STORAGE == "Q5_K":
        code_RC = _byte(codes_ptr, group_RC + 48 + part // 2 * 32 + place, inside_RC) >> (part % 2 * 4) & 15
        high_RC = _byte(codes_ptr, group_RC + 16 + place, inside_RC) >> part & 1
        weight_RC = _k_scaled(codes_ptr, halves_ptr, group_RC, part, code_RC | high_RC << 4, inside_RC)
    else:
        tl.static_assert(STORAGE == "Q6_K")
        low_at, high_at = part // 4 * 64 + part % 2 * 32, 128 + part // 4 * 32
        low_RC = _byte(codes_ptr, group_RC + low_at + place, inside_RC) >> (part % 4 // 2 * 4) & 15
        high_RC = _byte(codes_ptr, group_RC + high_at + place, inside_RC) >> (part % 4 * 2) & 3
        scale_RC = _byte(codes_ptr, group_RC + 192 + part * 2 + place // 16, inside_RC).to(tl.int8).to(tl.float32)
        scale_RC = scale_RC * _half(halves_ptr, group_RC + 208, inside_RC)
        weight_RC = scale_RC * ((low_RC | high_RC << 4) - 32).to(tl.float32)
    return weight_RC


@triton.jit
def _byte(codes_ptr, at_RC, inside_RC):
    return tl.load(codes_ptr + at_RC, mask=inside_RC, other=0).to(tl.int32)


@triton.jit
def _half(halves_ptr, at_RC, inside_RC):
    """The float16 at a byte offset, which is even in every storage."""
    return tl.load(halves_ptr + at_RC // 2, mask=inside_RC, other=0.0).to(tl.float32)


@triton.jit
def _nibble(codes_ptr, at_RC, place, inside_RC):
    """16 bytes hold the first 16 codes in their low halves, the others in their high ones."""
    return _byte(codes_ptr, at_RC + place % 16, inside_RC) >> (place // 16 * 4) & 15


@triton.jit
def _high_bit(codes_ptr, at_RC, place, inside_RC):
    """The fifth bit of a code: one of the 32 in four bytes."""
    return (_byte(codes_ptr, at_RC + place // 8, inside_RC) >> (place % 8) & 1) << 4


@triton.jit
def _scaled(halves_ptr, group_RC, code_RC, inside_RC):
    """Scale times code plus minimum, which stand first in the group."""
    scale_RC = _half(halves_ptr, group_RC, inside_RC)
    return scale_RC * code_RC.to(tl.float32) + _half(halves_ptr, group_RC + 2, inside_RC)


@triton.jit
def _k_scaled(codes_ptr, halves_ptr, group_RC, part, code_RC, inside_RC):
    """The same for a part of a Q4_K or Q5_K group, whose twelve bytes of 6-bit numbers reference.py explains."""
    first = _byte(codes_ptr, group_RC + 4 + part % 4, inside_RC)
    second = _byte(codes_ptr, group_RC + 8 + part % 4, inside_RC)
    third = _byte(codes_ptr, group_RC + 12 + part % 4, inside_RC)
    scale_RC = tl.where(part < 4, first & 63, (third & 15) | (first >> 2 & 48)).to(tl.float32)
    minimum_RC = tl.where(part < 4, second & 63, (third >> 4) | (second >> 2 & 48)).to(tl.float32)
    scale_RC = scale_RC * _half(halves_ptr, group_RC, inside_RC)
    return scale_RC * code_RC.to(tl.float32) - minimum_RC * _half(halves_ptr, group_RC + 2, inside_RC)
