"""A layer that keeps a state of fixed size for each sequence, where attention keeps keys and values.

Owns the order of a gated delta net: one projection, the causal convolution, the rule, the gated norm, the output. In:
normed hidden states of a step and a layer's states. Out: what is added to the hidden states. It does not know the rule
itself (kernels/gated_delta.py) or who owns which state. Invariants: a sequence reads and writes its own state only; one
that starts at its first token finds zeros, whatever its slot held before.

Shapes: T tokens of the step, N new tokens of one sequence, E hidden size, H value heads, G key heads, K key_dim,
V value_dim, C channels of the convolution, W tokens that it sees, S state slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from plimsoll_runtime.kernels.dispatch import advance_states, convolve_states
from plimsoll_runtime.kernels.gated_delta import spread_key_heads
from plimsoll_runtime.kernels.matrix import Matrix
from plimsoll_runtime.kernels.reference import rms_norm
from plimsoll_runtime.models.architecture import GatedDelta
from plimsoll_runtime.models.attention import SequenceSpan


@dataclass(frozen=True, slots=True)
class StateCache:
    """One layer's states: `recurrent` float32 `[S, H, K, V]`, and the convolution's last inputs `[S, W - 1, C]`."""

    recurrent: torch.Tensor
    convolution: torch.Tensor


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """`projection` gives queries, keys, values (the C channels), the gate, beta and alpha side by side."""

    shape: GatedDelta
    projection: Matrix
    conv_weight_CW: torch.Tensor
    decay_H: torch.Tensor
    """Below zero: what a step of size one forgets, as a logarithm."""
    step_bias_H: torch.Tensor
    norm: torch.Tensor
    output: Matrix
    norm_epsilon: float

    def __call__(self, normed_TE: torch.Tensor, spans: Sequence[SequenceSpan], cache: StateCache) -> torch.Tensor:
        """`[T, E]` in and out; moves the state of every span on by its tokens."""
        shape = self.shape
        sizes = [shape.conv_size, shape.value_size, shape.num_value_heads, shape.num_value_heads]
        mixed_TC, gate, beta, alpha = torch.split(self.projection.project(normed_TE), sizes, -1)
        clear_new_states(spans, cache)
        mixed_TC = convolve_states(mixed_TC, self.conv_weight_CW, spans, cache.convolution)
        query, key, value = torch.split(mixed_TC, [shape.key_size, shape.key_size, shape.value_size], -1)
        decay_TH = self.decay_H * functional.softplus(alpha.float() + self.step_bias_H)
        attended_THV = advance_states(
            spread_key_heads(query.view(-1, shape.num_key_heads, shape.key_dim), shape.num_value_heads, shape.tiled),
            spread_key_heads(key.view(-1, shape.num_key_heads, shape.key_dim), shape.num_value_heads, shape.tiled),
            value.view(-1, shape.num_value_heads, shape.value_dim),
            decay_TH,
            beta.float().sigmoid(),
            spans,
            cache.recurrent,
        )
        normed_THV = rms_norm(attended_THV, self.norm, self.norm_epsilon).flatten(1)
        return self.output.project((normed_THV * functional.silu(gate.float())).to(normed_TE.dtype))


def clear_new_states(spans: Sequence[SequenceSpan], cache: StateCache) -> None:
    """A sequence starts from zeros; its slot may hold what another one left."""
    for span in spans:
        if span.context_tokens == 0:
            cache.recurrent[span.state_slot].zero_()
            cache.convolution[span.state_slot].zero_()
