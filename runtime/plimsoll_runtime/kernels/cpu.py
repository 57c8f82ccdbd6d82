"""4-bit and 8-bit weights on a processor: exact float32 products without decoding the weights first.

Owns `GroupedMatrix` for Q4_0, Q4_1 and Q8_0. The codes of each input column are kept as one row of an embedding table
with scale 1, so that torch's quantized embedding bag (fbgemm, vectorized for the processor at hand) sums
`input * code` over the 32 inputs of a group for all outputs at once; the group's scale and minimum are applied to
those sums, one thirty-second of the work. It does not know other storages. Invariant: besides four or eight bytes per
input column, the memory kept is the memory stored; nothing is rounded that the specification does not round.

Measured on two cores with AVX-512 (torch 2.13): the bags run 10 G weights/s per core and row, as fast as a float32
product from memory eight times the size. torch's own 4-bit kernel (`_weight_int4pack_mm_for_cpu`) is right in
float32 but runs 0.3 G weights/s there, since only its bfloat16 form is vectorized, and that one rounds scales,
activations and results to 8 bits: it is not used.

Shapes: T tokens, C columns (inputs), R rows (outputs), G groups of 32 columns, B bytes of one table row.
"""

import functools
from dataclasses import dataclass

import torch

from plimsoll_runtime.kernels.matrix import TILE_WEIGHTS
from plimsoll_runtime.kernels.reference import nibbles
from plimsoll_runtime.kernels.stored import Storage, StoredTensor

GROUP = 32
"""Weights that share a scale, in all three storages."""

MAX_BAG_TOKENS = 8
"""Up to this many tokens the bags are used; beyond, a tile is decoded once for all tokens. Measured on the processor
above, for matrices of 576 to 49,152 rows: both take equally long at 7 tokens with Q4_1, and later with Q8_0."""

CODE_OFFSETS = {"Q4_0": -8, "Q4_1": 0, "Q8_0": -128}
"""What is added to a stored code; Q8_0's signed codes are kept shifted up by 128."""


@dataclass(frozen=True, slots=True)
class GroupedMatrix:
    """A quantized `[R, C]` matrix, transposed: `table_CB` holds the codes of column c for all R outputs.

    `columns` counts the columns once per token of the largest bagged product, `starts` says where its bags begin.
    """

    num_outputs: int
    bits: int
    code_offset: int
    table_CB: torch.Tensor
    scale_GR: torch.Tensor
    minimum_GR: torch.Tensor | None
    columns: torch.Tensor
    starts: torch.Tensor
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return self.table_CB.nbytes + self.scale_GR.nbytes + (0 if self.minimum_GR is None else self.minimum_GR.nbytes)

    def project(self, input_TC: torch.Tensor) -> torch.Tensor:
        values_TC = input_TC.float().contiguous()
        multiply = self._multiply_bags if values_TC.shape[0] <= MAX_BAG_TOKENS else self._multiply_tiles
        return multiply(values_TC).to(self.dtype)

    def take_rows(self, rows_T: torch.Tensor) -> torch.Tensor:
        num_columns = self.table_CB.shape[0]
        codes_CT = self._codes(rows_T).float().add_(self.code_offset).view(-1, GROUP, rows_T.numel())
        weights = codes_CT * self.scale_GR.index_select(1, rows_T)[:, None]
        if self.minimum_GR is not None:
            weights += self.minimum_GR.index_select(1, rows_T)[:, None]
        return weights.view(num_columns, -1).t().contiguous().to(self.dtype)

    def _codes(self, rows_T: torch.Tensor) -> torch.Tensor:
        if self.bits == 8:
            return self.table_CB.index_select(1, rows_T)
        shifts_T = (rows_T % 2 * 4).to(torch.uint8)
        return (self.table_CB.index_select(1, rows_T // 2) >> shifts_T) & 15

    def _multiply_bags(self, values_TC: torch.Tensor) -> torch.Tensor:
        num_tokens = values_TC.shape[0]
        num_inputs = values_TC.numel()
        indices, starts = self.columns[:num_inputs], self.starts[: num_inputs // GROUP]
        sums_TGR = self._sum_bags(indices, starts, values_TC.view(-1)).view(num_tokens, -1, self.num_outputs)
        output_TR = sums_TGR.mul_(self.scale_GR).sum(1)
        if self.minimum_GR is None:
            return output_TR
        return output_TR.addmm_(values_TC.view(num_tokens, -1, GROUP).sum(-1), self.minimum_GR.float())

    def _multiply_tiles(self, values_TC: torch.Tensor) -> torch.Tensor:
        num_tokens, num_columns = values_TC.shape
        output_TR = values_TC.new_zeros((num_tokens, self.num_outputs))
        step = max(GROUP, TILE_WEIGHTS // self.num_outputs // GROUP * GROUP)
        for start in range(0, num_columns, step):
            stop = min(start + step, num_columns)
            output_TR.addmm_(values_TC[:, start:stop], self._decode_columns(start, stop))
        return output_TR

    def _decode_columns(self, start: int, stop: int) -> torch.Tensor:
        """Columns start..stop-1 as float32 `[C, R]`; both are multiples of the group."""
        groups = slice(start // GROUP, stop // GROUP)
        codes = self._sum_bags(self.columns[start:stop], self.columns[: stop - start], None)
        weights_GCR = codes.view(-1, GROUP, self.num_outputs).mul_(self.scale_GR[groups, None])
        if self.minimum_GR is not None:
            weights_GCR += self.minimum_GR[groups, None]
        return weights_GCR.view(-1, self.num_outputs)

    def _sum_bags(self, indices: torch.Tensor, starts: torch.Tensor, factors: torch.Tensor | None) -> torch.Tensor:
        """For each bag the sum of `factor * code` over its table rows, float32 `[bags, R]`."""
        operators = torch.ops.quantized
        bag = (
            operators.embedding_bag_4bit_rowwise_offsets
            if self.bits == 4
            else operators.embedding_bag_byte_rowwise_offsets
        )
        sums: torch.Tensor = bag(self.table_CB, indices, starts, False, 0, False, factors, None, False)
        return sums


def can_group(storage: Storage, num_rows: int) -> bool:
    """Whether `group_matrix` takes such a matrix: two 4-bit outputs share a byte, so an odd number of them does not."""
    return storage.name in CODE_OFFSETS and num_rows % 2 == 0


def group_matrix(stored: StoredTensor, dtype: torch.dtype) -> GroupedMatrix:
    """Repacks Q4_0, Q4_1 or Q8_0 bytes; the stored bytes are not needed afterwards. Products come out in `dtype`."""
    shape = (stored.num_rows, stored.num_columns)
    data = torch.empty(grouped_bytes(stored.storage, shape), dtype=torch.uint8)
    group_into(stored, data)
    return open_groups(stored.storage, shape, dtype, data)


def grouped_bytes(storage: Storage, shape: tuple[int, int]) -> int:
    """What such a matrix takes: its table, scales and minimums, one behind the other."""
    table, numbers = _parts(storage, shape)
    return table + numbers * (2 if storage.name == "Q4_1" else 1)


def group_into(stored: StoredTensor, data: torch.Tensor) -> None:
    """Writes `grouped_bytes` bytes."""
    name, num_rows = stored.storage.name, stored.num_rows
    groups = stored.data_RB.view(num_rows, -1, stored.storage.group_bytes)
    bits = _bits(stored.storage)
    codes = groups[:, :, 2:] ^ 128 if bits == 8 else nibbles(groups[:, :, 4 if name == "Q4_1" else 2 :])
    parts = [_make_table(codes.view(num_rows, -1), bits, CODE_OFFSETS[name]), _transposed_halves(groups, 0)]
    if name == "Q4_1":
        parts.append(_transposed_halves(groups, 2))
    torch.cat([part.view(-1).view(torch.uint8) for part in parts], out=data)


def open_groups(storage: Storage, shape: tuple[int, int], dtype: torch.dtype, data: torch.Tensor) -> GroupedMatrix:
    """A matrix over bytes that `group_into` wrote; it shares their memory."""
    num_rows, num_columns = shape
    table, _ = _parts(storage, shape)
    halves = data[table:].view(torch.float16).view(-1, num_columns // GROUP, num_rows)
    columns, starts = _bag_indices(num_columns)
    return GroupedMatrix(
        num_outputs=num_rows,
        bits=_bits(storage),
        code_offset=CODE_OFFSETS[storage.name],
        table_CB=data[:table].view(num_columns, -1),
        scale_GR=halves[0],
        minimum_GR=halves[1] if storage.name == "Q4_1" else None,
        columns=columns,
        starts=starts,
        dtype=dtype,
    )


def _bits(storage: Storage) -> int:
    return 8 if storage.name == "Q8_0" else 4


def _parts(storage: Storage, shape: tuple[int, int]) -> tuple[int, int]:
    """Bytes of the table, whose rows end in a scale and an offset, and of one float16 for each group."""
    num_rows, num_columns = shape
    bits = _bits(storage)
    return num_columns * (num_rows * bits // 8 + bits), num_columns // GROUP * num_rows * 2


@functools.lru_cache
def _bag_indices(num_columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Matrices of one width share them, and nobody writes to them."""
    columns = torch.arange(num_columns, dtype=torch.int32).repeat(MAX_BAG_TOKENS)
    return columns, torch.arange(0, num_columns * MAX_BAG_TOKENS, GROUP, dtype=torch.int32)


def _make_table(codes_RC: torch.Tensor, bits: int, code_offset: int) -> torch.Tensor:
    """Table rows as fbgemm lays them out: codes (two per byte, the even output low), then scale 1 and the offset."""
    codes_CR = codes_RC.t()
    packed = codes_CR if bits == 8 else codes_CR[:, 0::2] | (codes_CR[:, 1::2] << 4)
    number = torch.float32 if bits == 8 else torch.float16
    tail = torch.tensor([1, code_offset], dtype=number).view(torch.uint8)
    return torch.cat((packed, tail.expand(packed.shape[0], -1)), 1)


def _transposed_halves(groups_RGB: torch.Tensor, start: int) -> torch.Tensor:
    """The float16 at a byte offset of each group, as `[G, R]`."""
    return groups_RGB[:, :, start : start + 2].view(torch.float16).squeeze(-1).t().contiguous()
