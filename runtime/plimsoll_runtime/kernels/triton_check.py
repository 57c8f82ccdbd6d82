"""Whether Triton's kernels give on this device what the specification gives: a few tokens of random numbers at start.

Owns the comparison. In: the device and a model's shapes. Out: None, or one sentence about what differs or does not
compile. It also compiles what the first step would have to wait for.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from plimsoll_runtime.kernels import reference
from plimsoll_runtime.kernels.choice import StepShape
from plimsoll_runtime.kernels.triton_attention import attend_chunks, attend_tokens, make_tables, store_rows

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
    for name, differs in CHECKS.items():
        try:
            difference = differs(device, shape)
        except Exception as error:  # whatever a compiler or a driver raises: torch computes then, and the log says why
            return f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:MESSAGE_CHARACTERS]}"
        if not difference <= TOLERANCES[shape.dtype]:
            return f"{name}: off by {difference:.3g}, where {TOLERANCES[shape.dtype]} is allowed"
    return None


def _check_decoding(device: torch.device, shape: StepShape) -> float:
    return _attention_error(device, shape, num_tokens=1)


def _check_prefill(device: torch.device, shape: StepShape) -> float:
    return _attention_error(device, shape, num_tokens=37)


CHECKS: dict[str, Callable[[torch.device, StepShape], float]] = {
    "attention of one new token": _check_decoding,
    "attention of a prompt's chunk": _check_prefill,
}


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
