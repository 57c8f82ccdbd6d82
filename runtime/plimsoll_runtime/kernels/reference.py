"""What every kernel must compute, in plain torch: the specification that faster paths are tested against.

Owns the meaning of each storage type's bytes (the layouts of ggml-common.h, checked bit for bit in float32 against
the `gguf` library), and the small operations of a decoder layer. Pure functions of tensors; knows no model.

Shapes: T tokens, H query heads, K key/value heads, D head_dim, S cached tokens, E hidden size, R rows, C columns,
G groups of one storage type.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch.nn import functional

from plimsoll_runtime.kernels.stored import FLOAT_DTYPES, StoredTensor

K_SCALE_BYTES = 12
"""Eight 6-bit scales and eight 6-bit minimums of a K-quant, packed."""


def dequantize(stored: StoredTensor) -> torch.Tensor:
    """The weights as float32 in the stored shape, in new memory unless they are stored as float32."""
    storage = stored.storage
    if storage.name in FLOAT_DTYPES:
        return stored.data_RB.view(FLOAT_DTYPES[storage.name]).float().view(stored.shape)
    groups = stored.data_RB.reshape(-1, storage.group_bytes)
    return _DECODERS[storage.name](groups).view(stored.shape)


def linear(input_TC: torch.Tensor, stored: StoredTensor) -> torch.Tensor:
    """`[T, C] @ [R, C]^T`, in float32."""
    return functional.linear(input_TC.float(), dequantize(stored))


def rms_norm(input_TE: torch.Tensor, weight_E: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Divides each row by its root mean square, in float32, then scales; the input's dtype comes out."""
    values = input_TE.float()
    scale = torch.rsqrt(values.square().mean(-1, keepdim=True).add_(epsilon))
    return (values * scale).mul_(weight_E).to(input_TE.dtype)


def rotate(input_THD: torch.Tensor, cos_T1D: torch.Tensor, sin_T1D: torch.Tensor) -> torch.Tensor:
    """Rotary embedding over the two halves of each head: element i turns with element i + D/2.

    Where the tables are narrower than the head, its first elements turn, and the others stay as they are."""
    num_turned = cos_T1D.shape[-1]
    turned_THD, kept_THD = input_THD[..., :num_turned], input_THD[..., num_turned:]
    first, second = turned_THD.chunk(2, -1)
    turned_THD = turned_THD * cos_T1D + torch.cat((-second, first), -1) * sin_T1D
    return turned_THD if num_turned == input_THD.shape[-1] else torch.cat((turned_THD, kept_THD), -1)


def attend(
    query_THD: torch.Tensor, keys_SKD: torch.Tensor, values_SKD: torch.Tensor, scale: float, window: int | None
) -> torch.Tensor:
    """Causal attention of the last T of S tokens; a window of w sees the token itself and w - 1 before it."""
    num_tokens, num_heads, _ = query_THD.shape
    per_group = num_heads // keys_SKD.shape[1]
    keys_SHD = keys_SKD.repeat_interleave(per_group, 1).float()
    values_SHD = values_SKD.repeat_interleave(per_group, 1).float()
    scores_HTS = torch.einsum("thd,shd->hts", query_THD.float(), keys_SHD) * scale
    hidden_TS = ~visible(num_tokens, keys_SKD.shape[0], window, query_THD.device)
    weights_HTS = scores_HTS.masked_fill(hidden_TS, float("-inf")).softmax(-1)
    return torch.einsum("hts,shd->thd", weights_HTS, values_SHD).to(query_THD.dtype)


def visible(num_queries: int, num_keys: int, window: int | None, device: torch.device) -> torch.Tensor:
    """`[T, S]` bool: may query t, which stands at S - T + t, see key s."""
    query_T1 = torch.arange(num_keys - num_queries, num_keys, device=device)[:, None]
    key_1S = torch.arange(num_keys, device=device)[None, :]
    seen = key_1S <= query_T1
    return seen if window is None else seen & (key_1S > query_T1 - window)


def half_values(groups: torch.Tensor, start: int) -> torch.Tensor:
    """The float16 number at a byte offset of each group, as float32 `[G, 1]`."""
    return groups[:, start : start + 2].view(torch.float16).float()


def nibbles(packed: torch.Tensor) -> torch.Tensor:
    """`[..., n]` bytes to `[..., 2n]` codes 0..15: all low halves, then all high halves."""
    return torch.cat((packed & 15, packed >> 4), -1)


def _high_bits_32(packed: torch.Tensor) -> torch.Tensor:
    """`[G, 4]` bytes to `[G, 32]` single bits."""
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed[:, :, None] >> shifts) & 1).view(-1, 32)


def _decode_q4_0(groups: torch.Tensor) -> torch.Tensor:
    return half_values(groups, 0) * (nibbles(groups[:, 2:]).float() - 8)


def _decode_q4_1(groups: torch.Tensor) -> torch.Tensor:
    return half_values(groups, 0) * nibbles(groups[:, 4:]).float() + half_values(groups, 2)


def _decode_q5_0(groups: torch.Tensor) -> torch.Tensor:
    codes = nibbles(groups[:, 6:]) | (_high_bits_32(groups[:, 2:6]) << 4)
    return half_values(groups, 0) * (codes.float() - 16)


def _decode_q5_1(groups: torch.Tensor) -> torch.Tensor:
    codes = nibbles(groups[:, 8:]) | (_high_bits_32(groups[:, 4:8]) << 4)
    return half_values(groups, 0) * codes.float() + half_values(groups, 2)


def _decode_q8_0(groups: torch.Tensor) -> torch.Tensor:
    return groups[:, 2:].view(torch.int8).float() * half_values(groups, 0)


def _k_scales(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and minimum `[G, 8, 1]` of the eight parts of a Q4_K or Q5_K group.

    Twelve bytes: four scales, four minimums, four bytes with the low halves of the other four of each; the two high
    bits of the latter stand in the two high bits of the former.
    """
    packed = groups[:, 4 : 4 + K_SCALE_BYTES].reshape(-1, 3, 4)
    first, second, third = packed[:, 0], packed[:, 1], packed[:, 2]
    scales = torch.cat((first & 63, (third & 15) | ((first >> 2) & 48)), -1)
    minimums = torch.cat((second & 63, (third >> 4) | ((second >> 2) & 48)), -1)
    scale = half_values(groups, 0) * scales.float()
    minimum = half_values(groups, 2) * minimums.float()
    return scale[:, :, None], minimum[:, :, None]


def _k_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """`[G, 128]` bytes to `[G, 8, 32]`: each run of 32 bytes holds one part in its low, the next in its high halves."""
    runs = packed.reshape(-1, 4, 32)
    return torch.stack((runs & 15, runs >> 4), 2).view(-1, 8, 32)


def _decode_q4_k(groups: torch.Tensor) -> torch.Tensor:
    scale, minimum = _k_scales(groups)
    return scale * _k_nibbles(groups[:, 16:]).float() - minimum


def _decode_q5_k(groups: torch.Tensor) -> torch.Tensor:
    scale, minimum = _k_scales(groups)
    shifts = torch.arange(8, dtype=torch.uint8, device=groups.device)[None, :, None]
    high = (groups[:, None, 16:48] >> shifts) & 1
    return scale * (_k_nibbles(groups[:, 48:]) | (high << 4)).float() - minimum


def _decode_q6_k(groups: torch.Tensor) -> torch.Tensor:
    low_runs = groups[:, :128].reshape(-1, 2, 64)
    low = torch.stack((low_runs & 15, low_runs >> 4), 2).view(-1, 8, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=groups.device)[:, None]
    high = ((groups[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3).view(-1, 8, 32)
    codes = (low | (high << 4)).float().view(-1, 16, 16) - 32
    scale = half_values(groups, 208) * groups[:, 192:208].view(torch.int8).float()
    return scale[:, :, None] * codes


_DECODERS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = MappingProxyType(
    {
        "Q4_0": _decode_q4_0,
        "Q4_1": _decode_q4_1,
        "Q5_0": _decode_q5_0,
        "Q5_1": _decode_q5_1,
        "Q8_0": _decode_q8_0,
        "Q4_K": _decode_q4_k,
        "Q5_K": _decode_q5_k,
        "Q6_K": _decode_q6_k,
    }
)
