"""Rotary embedding: the frequencies of each kind of scaling, and the cosines and sines of a step's positions.

Owns the arithmetic of `Rope`. In: a Rope, positions. Out: tensors. It does not know layers or files. Sources: the
YaRN paper (arXiv 2309.00071, section 3) and the Llama 3.1 release's frequency rule, both checked against transformers.
Invariant: frequencies are float32 and computed once; angles are float32 whatever the dtype of the activations.

Shapes: T tokens, D elements of a head that turn, F = D/2 frequencies.
"""

import math
from dataclasses import dataclass

import torch

from plimsoll_runtime.models.architecture import LinearScaling, Llama3Scaling, Rope, YarnScaling


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """Frequencies of one rope, on the device, and the factor on its cosines and sines. Compared by identity."""

    frequencies_F: torch.Tensor
    attention_factor: float

    def tables(self, positions_T: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines `[T, 1, D]`, one row per token, the same for every head."""
        angles_TF = positions_T.to(torch.float32)[:, None] * self.frequencies_F
        angles_T1D = torch.cat((angles_TF, angles_TF), -1)[:, None]
        cos, sin = angles_T1D.cos(), angles_T1D.sin()
        return (cos * self.attention_factor).to(dtype), (sin * self.attention_factor).to(dtype)


def make_rotation(rope: Rope, head_dim: int, factors_F: torch.Tensor | None, device: torch.device) -> Rotation:
    """`factors_F` divides the frequencies of a rope that `uses_factors`; other ropes ignore it."""
    turned_dims = head_dim if rope.turned_dims is None else rope.turned_dims
    exponents = torch.arange(0, turned_dims, 2, dtype=torch.float32) / turned_dims
    frequencies = 1.0 / (rope.theta**exponents)
    attention_factor = 1.0
    match rope.scaling:
        case LinearScaling(factor):
            frequencies = frequencies / factor
        case Llama3Scaling():
            frequencies = _llama3(frequencies, rope.scaling)
        case YarnScaling():
            frequencies = _yarn(frequencies, rope, rope.scaling, turned_dims)
            attention_factor = rope.scaling.attention_factor
        case None:
            pass
    if rope.uses_factors and factors_F is not None:
        frequencies = frequencies / factors_F.to(torch.float32).cpu()
    return Rotation(frequencies.to(device), attention_factor)


def _llama3(frequencies: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    turns = scaling.original_context * frequencies / (2 * math.pi)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * frequencies / scaling.factor + kept * frequencies


def _yarn(frequencies: torch.Tensor, rope: Rope, scaling: YarnScaling, head_dim: int) -> torch.Tensor:
    low = _yarn_dimension(scaling.beta_fast, rope, scaling, head_dim)
    high = _yarn_dimension(scaling.beta_slow, rope, scaling, head_dim)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low if high != low else 0.001  # a ramp of no width would divide by zero
    kept = 1 - ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return (1 - kept) * frequencies / scaling.factor + kept * frequencies


def _yarn_dimension(turns: float, rope: Rope, scaling: YarnScaling, head_dim: int) -> float:
    """The dimension whose wave turns that often within the original context."""
    return head_dim * math.log(scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))
