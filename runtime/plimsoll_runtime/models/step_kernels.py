"""What computes a step, as far as a decoder has a choice: attention over pages, products, mixtures.

Owns `StepKernels` and its two kinds, torch for every device and Triton's for a CUDA device. In: `KernelChoice.triton`
(kernels/choice.py decides). Out: functions that a decoder calls without knowing whose they are. Invariant: both kinds
give the same numbers up to rounding.

Shapes: T tokens of the step, H query heads, K key/value heads, D head_dim.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from plimsoll_runtime.models.architecture import Activation
from plimsoll_runtime.models.attention import (
    AttentionBatch,
    AttentionPlan,
    LayerCache,
    SpanPlan,
    plan_attention,
    store_tokens,
)
from plimsoll_runtime.models.feed_forward import ExpertWeights, GroupedExperts

ExpertGrouping = Callable[[Sequence[ExpertWeights], Activation, torch.device, torch.dtype], GroupedExperts | None]


@dataclass(frozen=True, slots=True)
class StepKernels:
    """`plan_attention(batch, window, device)` is called once per step and window; `store(cache, rows_T, key_TKD,
    value_TKD)` and the plan's `attend` once per layer. `triton`: dispatch.py makes matrices for Triton, too.
    `group_experts(experts, activation, device, dtype)`, where there is one, takes all experts of a layer as stored, and
    gives None where they cannot be grouped."""

    plan_attention: Callable[[AttentionBatch, int | None, torch.device], AttentionPlan]
    store: Callable[[LayerCache, torch.Tensor, torch.Tensor, torch.Tensor], None]
    triton: bool = False
    group_experts: ExpertGrouping | None = None


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
