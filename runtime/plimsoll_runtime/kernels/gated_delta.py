"""The gated delta rule and its causal convolution, in plain torch: what faster paths are tested against.

Owns the arithmetic of a step's tokens on the states of their sequences. Functions of tensors, but that states are
written where they lie; they know no model, and of who owns a state only its slot. A single token takes `delta_step`,
which is the definition; more take `delta_block`, which gives the same numbers up to rounding by matrix products.

The rule (arXiv 2412.06464), per value head, with a state S of `[K, V]`, in float32 throughout:

    S <- exp(decay_t) * S                            decay_t <= 0: what is forgotten
    S <- S + key_t (x) beta_t * (value_t - key_t S)  what the state predicted is replaced by beta's share
    output_t = query_t S / sqrt(K)                   queries and keys have length one

Shapes: T tokens of the step, N new tokens of one sequence, H value heads, G key heads, K key_dim, V value_dim,
C channels of the convolution, W tokens that it sees; B tokens of a block, S state slots.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch.nn import functional

BLOCK_TOKENS = 64
"""Tokens that one block condenses into matrix products: its B x B systems are solved exactly."""

NORM_EPSILON = 1e-6


class StateSpan(Protocol):
    """Which rows of the step belong to one sequence, and in which slot its state lies."""

    @property
    def rows(self) -> slice: ...

    @property
    def state_slot(self) -> int: ...


def convolve_states(
    input_TC: torch.Tensor, weight_CW: torch.Tensor, spans: Sequence[StateSpan], past_SWC: torch.Tensor
) -> torch.Tensor:
    """`[T, C]`: every span through `causal_conv` on its own past; rows of no span are zero."""
    output_TC = torch.zeros_like(input_TC)
    for span in spans:
        output_TC[span.rows] = causal_conv(input_TC[span.rows], weight_CW, past_SWC[span.state_slot])
    return output_TC


def advance_states(
    query_THK: torch.Tensor,
    key_THK: torch.Tensor,
    value_THV: torch.Tensor,
    decay_TH: torch.Tensor,
    beta_TH: torch.Tensor,
    spans: Sequence[StateSpan],
    state_SHKV: torch.Tensor,
) -> torch.Tensor:
    """Float32 `[T, H, V]`: every span through `advance` on its own state; rows of no span are zero."""
    output_THV = torch.zeros_like(value_THV, dtype=torch.float32)
    for span in spans:
        inputs = (part[span.rows] for part in (query_THK, key_THK, value_THV, decay_TH, beta_TH))
        output_THV[span.rows] = advance(state_SHKV[span.state_slot], *inputs)
    return output_THV


def causal_conv(input_NC: torch.Tensor, weight_CW: torch.Tensor, past_WC: torch.Tensor) -> torch.Tensor:
    """Each channel's last W inputs, weighted, through SiLU. `past_WC` holds the W - 1 inputs before the first token
    (zero where there were none) and is left holding the last W - 1."""
    num_tokens, width = input_NC.shape[0], weight_CW.shape[1]
    inputs = torch.cat((past_WC, input_NC))
    output_NC = torch.zeros_like(input_NC, dtype=torch.float32)
    for index in range(width):
        output_NC += inputs[index : index + num_tokens].float() * weight_CW[:, index]
    past_WC.copy_(inputs[num_tokens:])
    return functional.silu(output_NC).to(input_NC.dtype)


def spread_key_heads(heads_NGK: torch.Tensor, num_value_heads: int, tiled: bool) -> torch.Tensor:
    """The key head of every value head, `[N, H, K]`: in runs, or `tiled`, in turn."""
    per_key_head = num_value_heads // heads_NGK.shape[1]
    return heads_NGK.repeat(1, per_key_head, 1) if tiled else heads_NGK.repeat_interleave(per_key_head, 1)


def unit_length(heads_NHK: torch.Tensor) -> torch.Tensor:
    """Float32 heads of length one."""
    heads = heads_NHK.float()
    return heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + NORM_EPSILON)


def advance(
    state_HKV: torch.Tensor,
    query_NHK: torch.Tensor,
    key_NHK: torch.Tensor,
    value_NHV: torch.Tensor,
    decay_NH: torch.Tensor,
    beta_NH: torch.Tensor,
) -> torch.Tensor:
    """Outputs `[N, H, V]` in float32; `state_HKV` (float32) is left as it is after the last token."""
    query, key = unit_length(query_NHK) * query_NHK.shape[-1] ** -0.5, unit_length(key_NHK)
    value, decay, beta = value_NHV.float(), decay_NH.float(), beta_NH.float()
    if query.shape[0] == 1:
        return delta_step(state_HKV, query[0], key[0], value[0], decay[0], beta[0])[None]
    parts = (query, key, value, decay, beta)
    starts = range(0, query.shape[0], BLOCK_TOKENS)
    outputs = [delta_block(state_HKV, *(part[start : start + BLOCK_TOKENS] for part in parts)) for start in starts]
    return torch.cat(outputs)


def delta_step(
    state_HKV: torch.Tensor,
    query_HK: torch.Tensor,
    key_HK: torch.Tensor,
    value_HV: torch.Tensor,
    decay_H: torch.Tensor,
    beta_H: torch.Tensor,
) -> torch.Tensor:
    """One token by the definition; queries are scaled, queries and keys of length one."""
    state_HKV.mul_(decay_H.exp()[:, None, None])
    known_HV = torch.einsum("hk,hkv->hv", key_HK, state_HKV)
    change_HV = (value_HV - known_HV) * beta_H[:, None]
    state_HKV.add_(key_HK[:, :, None] * change_HV[:, None, :])
    return torch.einsum("hk,hkv->hv", query_HK, state_HKV)


def delta_block(
    state_HKV: torch.Tensor,
    query_BHK: torch.Tensor,
    key_BHK: torch.Tensor,
    value_BHV: torch.Tensor,
    decay_BH: torch.Tensor,
    beta_BH: torch.Tensor,
) -> torch.Tensor:
    """The same for a block of tokens, `[B, H, V]`.

    A token's change is `beta_t * (value_t - what the state before it predicts)`, and that state holds the changes of
    the block's earlier tokens: B unknowns in B equations, triangular. What is left of a token at a later one is the
    exponential of the decays between them, each summed on its own: the difference of two sums over the block would
    lose digits behind a decay that forgets nearly all, and quotients of exponentials would overflow.
    """
    query, key, value = (part.transpose(0, 1) for part in (query_BHK, key_BHK, value_BHV))
    decay_HB, beta_HB1 = decay_BH.t(), beta_BH.t()[:, :, None]
    sums_HBB = decay_HB[:, :, None].expand(-1, -1, decay_HB.shape[1]).tril(-1).cumsum(1)
    ratio_HBB = sums_HBB.exp().tril()
    total_HB = decay_HB.cumsum(-1)
    system_HBB = (beta_HB1 * key) @ key.transpose(1, 2) * ratio_HBB
    since_start_HB1 = total_HB.exp()[:, :, None]
    wanted_HBV = beta_HB1 * (value - since_start_HB1 * (key @ state_HKV))
    change_HBV: torch.Tensor = torch.linalg.solve_triangular(system_HBB, wanted_HBV, upper=False, unitriangular=True)
    seen_HBB = query @ key.transpose(1, 2) * ratio_HBB
    output_HBV = since_start_HB1 * (query @ state_HKV) + seen_HBB @ change_HBV
    to_end_HB1 = ratio_HBB[:, -1, :, None]
    state_HKV.mul_(total_HB[:, -1].exp()[:, None, None]).add_((key * to_end_HB1).transpose(1, 2) @ change_HBV)
    return output_HBV.transpose(0, 1)
