"""What computes the parts of a step that are no products with weights: attention over pages, and storing into them.

Owns `StepKernels` and its two kinds, torch for every device and Triton's for a CUDA device. In: `KernelChoice.triton`
(kernels/choice.py decides). Out: functions that a decoder calls without knowing whose they are. Invariant: both kinds
give the same numbers up to rounding.

Shapes: T tokens of the step, H query heads, K key/value heads, D head_dim.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from plimsoll_runtime.models.attention import (
    AttentionBatch,
    AttentionPlan,
    LayerCache,
    SpanPlan,
    plan_attention,
    store_tokens,
)


@dataclass(frozen=True, slots=True)
class StepKernels:
    """`plan_attention(batch, window, device)` is called once per step and window; `store(cache, rows_T, key_TKD,
    value_TKD)` and the plan's `attend` once per layer."""

    plan_attention: Callable[[AttentionBatch, int | None, torch.device], AttentionPlan]
    store: Callable[[LayerCache, torch.Tensor, torch.Tensor, torch.Tensor], None]


def choose_step_kernels(triton: bool) -> StepKernels:
    """Triton is imported only where it computes: it is an optional dependency."""
    if not triton:
        return torch_kernels()
    from plimsoll_runtime.models.triton_step import triton_kernels  # noqa: PLC0415 (an optional dependency)

    return triton_kernels()


def torch_kernels() -> StepKernels:
    return StepKernels(
        plan_attention=lambda batch, window, device: SpanPlan(plan_attention(batch, window, device)),
        store=store_tokens,
    )
