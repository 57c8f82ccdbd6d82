"""Whether Triton's kernels give on this device what the specification gives: a few tokens of random numbers at start.

Owns the comparison. In: the device and a model's shapes. Out: None, or one sentence about what differs or does not
compile. It also compiles what the first step would have to wait for.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from plimsoll_runtime.kernels import reference
from plimsoll_runtime.kernels.choice import StepShape
from plimsoll_runtime.kernels.stored import FLOAT_DTYPES, STORAGES, StoredTensor, store_floats, stored_bytes
from plimsoll_runtime.kernels.triton_attention import attend_chunks, attend_tokens, make_tables, store_rows
from plimsoll_runtime.kernels.triton_product import MANY_ROWS, ExpertBank, TritonMatrix, project_pairs, route_pairs

TOLERANCES = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""For results of numbers around one; what a wrong index gives is off by one itself."""

MESSAGE_CHARACTERS = 300
SCALE = 0.1
CONTEXT_TOKENS = 300
"""More than one part of a decoding sequence's context (triton_attention.PART_TOKENS)."""


@dataclass(frozen=True, slots=True)
class _Sequence:
    start_row: int
    num_tokens: int
    context_tokens: int
    page_table: range


def find_fault(device: torch.device, shape: StepShape) -> str | None:
    """None where every kernel agrees with the specification."""
    for name, measure in _checks(device, shape):
        try:
            difference = measure()
        except Exception as error:  # whatever a compiler or a driver raises: torch computes then, and the log says why
            return f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:MESSAGE_CHARACTERS]}"
        if not difference <= TOLERANCES[shape.dtype]:
            return f"{name}: off by {difference:.3g}, where {TOLERANCES[shape.dtype]} is allowed"
    return None


def _checks(device: torch.device, shape: StepShape) -> Iterator[tuple[str, Callable[[], float]]]:
    """What is compared, and how to get the largest difference."""
    yield "attention of one new token", partial(_attention_error, device, shape, num_tokens=1)
    yield "attention of a prompt's chunk", partial(_attention_error, device, shape, num_tokens=37)
    for storage in sorted(shape.storages):
        for num_tokens in (1, MANY_ROWS + 1):
            yield f"{storage} times {num_tokens}", partial(_product_error, device, shape.dtype, storage, num_tokens)


@torch.inference_mode()
def _attention_error(device: torch.device, shape: StepShape, num_tokens: int) -> float:
    """The largest difference of one sequence, whose new keys and values the kernels store themselves."""
    total = CONTEXT_TOKENS + num_tokens
    num_pages = -(-total // shape.page_size)
    generator = torch.Generator().manual_seed(0)

    def random(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator).to(device, shape.dtype)

    keys, values = (random(num_pages * shape.page_size, shape.num_kv_heads, shape.head_dim) for _ in range(2))
    query_THD = random(num_tokens, shape.num_heads, shape.head_dim)
    key_TKD, value_TKD = (random(num_tokens, shape.num_kv_heads, shape.head_dim) for _ in range(2))
    pages = range(num_pages - 1, -1, -1)
    positions = torch.arange(total)
    rows = (num_pages - 1 - positions // shape.page_size) * shape.page_size + positions % shape.page_size
    expected_keys, expected_values = keys[rows.to(device)], values[rows.to(device)]
    expected_keys[CONTEXT_TOKENS:], expected_values[CONTEXT_TOKENS:] = key_TKD, value_TKD
    expected = reference.attend(query_THD, expected_keys, expected_values, SCALE, shape.window)
    store_rows(key_TKD, value_TKD, keys, values, rows[CONTEXT_TOKENS:].to(device))
    tables = make_tables([_Sequence(0, num_tokens, CONTEXT_TOKENS, pages)], shape.page_size, device)
    attend = attend_tokens if num_tokens == 1 else attend_chunks
    output_THD = torch.zeros_like(query_THD)
    attend(query_THD, keys, values, tables, SCALE, shape.window, output_THD)
    return float((output_THD - expected).float().abs().max())


@torch.inference_mode()
def _product_error(device: torch.device, dtype: torch.dtype, storage: str, num_tokens: int) -> float:
    """The largest difference of one matrix and of two experts, relative to the largest result."""
    generator = torch.Generator().manual_seed(0)
    experts = [_random_matrix(storage, generator).to(device) for _ in range(2)]
    values_TC = torch.randn(num_tokens, experts[0].num_columns, generator=generator).mul_(0.01).to(device, dtype)
    expected_TXR = torch.stack([reference.linear(values_TC, expert) for expert in experts], 1)
    bank_data = torch.stack([expert.data_RB for expert in experts])
    bank = ExpertBank(experts[0].storage, experts[0].num_columns, bank_data, dtype)
    chosen_TA = torch.tensor([[1, 0]], device=device).expand(num_tokens, -1)
    grouped = project_pairs(values_TC, bank, route_pairs(chosen_TA, 2)).view(num_tokens, 2, -1).flip(1)
    alone = TritonMatrix(experts[0], dtype).project(values_TC)
    errors = (grouped - expected_TXR).abs().max(), (alone - expected_TXR[:, 0]).abs().max()
    return float(max(errors) / expected_TXR.abs().max())


def _random_matrix(name: str, generator: torch.Generator) -> StoredTensor:
    """In bytes of any value but for one bit, without which a float16 is below two, and a sum of many finite."""
    storage, num_rows = STORAGES[name], 48
    if storage.group_weights == 1:
        return store_floats(torch.randn(num_rows, 96, generator=generator).to(FLOAT_DTYPES[name]))
    num_columns = 2 * storage.group_weights
    size = (num_rows, stored_bytes(storage, (num_columns,)))
    data_RB = torch.randint(0, 256, size, generator=generator, dtype=torch.uint8) & 0xBF
    return StoredTensor(storage, (num_rows, num_columns), data_RB)
