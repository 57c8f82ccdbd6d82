"""A GGUF file's keys as an Architecture, and its tensor names and conventions as the decoder's.

Owns what is particular to models in GGUF: key names, tensor names, the row order of Llama's queries and keys, the
things a converter leaves out (Gemma 3's local rope and layer pattern). In: a `GgufFile`. It does not compute.
Source: llama.cpp's conversion and model graphs, by behaviour.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from plimsoll_runtime.kernels.stored import StoredTensor
from plimsoll_runtime.models.architecture import (
    SUPPORTED_FAMILIES,
    Architecture,
    Attention,
    LinearScaling,
    Mixture,
    Rope,
    RopeScaling,
    YarnScaling,
    parameter_shapes,
)
from plimsoll_runtime.models.weights.entries import (
    TensorEntry,
    layer_storages,
    match_roles,
    read_bytes,
    split_first_dimension,
)
from plimsoll_runtime.models.weights.errors import CheckpointError
from plimsoll_runtime.models.weights.fields import Fields
from plimsoll_runtime.models.weights.gguf import GgufFile

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3", "qwen3moe")
MAX_LAYERS = 1024
GEMMA3_27B_LAYERS = 62
END_TOKEN_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
SAMPLING_PREFIX = "general.sampling."

PARTS: Mapping[str, str] = {
    "attention_norm": "attn_norm.weight",
    "query": "attn_q.weight",
    "key": "attn_k.weight",
    "value": "attn_v.weight",
    "query_bias": "attn_q.bias",
    "key_bias": "attn_k.bias",
    "value_bias": "attn_v.bias",
    "query_norm": "attn_q_norm.weight",
    "key_norm": "attn_k_norm.weight",
    "attention_output": "attn_output.weight",
    "post_attention_norm": "post_attention_norm.weight",
    "feed_forward_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "post_feed_forward_norm": "post_ffw_norm.weight",
    "router": "ffn_gate_inp.weight",
}
EXPERT_PARTS: Mapping[str, str] = {
    "gate": "ffn_gate_exps.weight",
    "up": "ffn_up_exps.weight",
    "down": "ffn_down_exps.weight",
}
WHOLE: Mapping[str, str] = {
    "embedding": "token_embd.weight",
    "norm": "output_norm.weight",
    "output": "output.weight",
    "rope_factors": "rope_freqs.weight",
}


class GgufWeights:
    """Reads parameters by role, in the decoder's conventions."""

    def __init__(self, architecture: Architecture, roles: Mapping[str, TensorEntry]) -> None:
        self._architecture = architecture
        self._roles = roles

    @property
    def num_bytes(self) -> int:
        return sum(entry.num_bytes for entry in self._roles.values())

    @property
    def layer_storages(self) -> frozenset[str]:
        return layer_storages(self._roles)

    def read(self, role: str) -> StoredTensor:
        stored = read_bytes(self._roles[role])
        part = role.rpartition(".")[2]
        if self._architecture.family != "llama" or part not in ("query", "key"):
            return stored
        num_heads = self._architecture.num_heads if part == "query" else self._architecture.num_kv_heads
        return stored.take_rows(_halves_order(num_heads, self._architecture.head_dim))


def read_architecture(file: GgufFile) -> Architecture:
    """The architecture that the keys describe. Raises CheckpointError naming the key."""
    general = Fields(file.path, file.metadata)
    family = general.word("general.architecture")
    if family not in FAMILIES:
        raise CheckpointError(
            f"{file.path}: general.architecture {family} is not supported; supported: {', '.join(SUPPORTED_FAMILIES)}"
        )
    fields = Fields(file.path, file.metadata, f"{family}.")
    mixture = _mixture(fields) if family == "qwen3moe" else None
    if mixture is None:
        fields.require("expert_count", 0)
    fields.refuse("attn_logit_softcapping", "final_logit_softcapping", "rope.scaling.yarn_log_multiplier")
    num_heads, hidden = fields.size("attention.head_count"), fields.size("embedding_length")
    head_dim = _head_dim(fields, hidden, num_heads)
    layers = _layers(fields, family, file.tensors)
    gemma = family == "gemma3"
    return Architecture(
        family=family,
        num_layers=len(layers),
        num_heads=num_heads,
        num_kv_heads=fields.size("attention.head_count_kv", num_heads, maximum=num_heads),
        head_dim=head_dim,
        hidden_size=hidden,
        feed_forward_size=fields.size("feed_forward_length") if mixture is None else mixture.expert_size,
        vocab_size=_vocab_size(file),
        context_window=_context_window(fields),
        layers=layers,
        norm_epsilon=fields.number("attention.layer_norm_rms_epsilon"),
        attention_scale=_attention_scale(family, len(layers), hidden, num_heads, head_dim),
        embedding_scale=math.sqrt(hidden) if gemma else 1.0,
        activation="gelu_tanh" if gemma else "silu",
        qkv_bias=family == "qwen2",
        query_key_norm=family in ("qwen3", "gemma3", "qwen3moe"),
        sandwich_norms=gemma,
        tied_output=WHOLE["output"] not in file.tensors,
        mixture=mixture,
    )


def open_weights(file: GgufFile, architecture: Architecture) -> GgufWeights:
    """Finds every parameter's tensor. Raises CheckpointError naming a missing, unexpected or wrongly shaped one."""
    shapes = dict(parameter_shapes(architecture))
    if any(layer.rope.uses_factors for layer in architecture.attention_layers):
        shapes["rope_factors"] = (architecture.head_dim // 2,)
    tensors = file.tensors if architecture.mixture is None else _split_experts(file.tensors)
    return GgufWeights(architecture, match_roles(file.path, shapes, tensors, _tensor_name, lambda name: False))


def end_token_ids(metadata: Mapping[str, Any]) -> frozenset[int]:
    """Every token that ends a turn: end of sequence, of turn, of message."""
    values = [metadata.get(f"tokenizer.ggml.{key}") for key in END_TOKEN_KEYS]
    return frozenset(value for value in values if isinstance(value, int))


def sampling_defaults(metadata: Mapping[str, Any]) -> dict[str, float | int]:
    """The `general.sampling.*` keys that are numbers, under their own names."""
    return {
        key: value
        for key, value in metadata.items()
        if key.startswith(SAMPLING_PREFIX) and isinstance(value, int | float) and not isinstance(value, bool)
    }


def _tensor_name(role: str) -> str:
    if role in WHOLE:
        return WHOLE[role]
    _, index, *expert, part = role.split(".")
    return f"blk.{index}.{EXPERT_PARTS[part]}[{expert[1]}]" if expert else f"blk.{index}.{PARTS[part]}"


def _split_experts(tensors: Mapping[str, TensorEntry]) -> dict[str, TensorEntry]:
    """A layer's experts lie in one tensor of three dimensions: an entry for each of them, `NAME[X]`."""
    split: dict[str, TensorEntry] = {}
    for name, entry in tensors.items():
        if name.endswith(tuple(EXPERT_PARTS.values())) and len(entry.shape) == 3:
            split |= {expert.name: expert for expert in split_first_dimension(entry)}
        else:
            split[name] = entry
    return split


def _halves_order(num_heads: int, head_dim: int) -> torch.Tensor:
    """Row order that turns neighbours (GGUF's Llama rotates elements 2i and 2i + 1) into halves (i and i + D/2)."""
    return torch.arange(num_heads * head_dim).view(num_heads, head_dim // 2, 2).transpose(1, 2).reshape(-1)


def _head_dim(fields: Fields, hidden: int, num_heads: int) -> int:
    head_dim = fields.size("attention.key_length", max(1, hidden // num_heads))
    fields.require("attention.value_length", head_dim)
    fields.require("rope.dimension_count", head_dim)
    if head_dim % 2:
        raise fields.error("attention.key_length", f"is {head_dim}; heads must have an even size")
    return head_dim


def _vocab_size(file: GgufFile) -> int:
    embedding = file.tensors.get(WHOLE["embedding"])
    if embedding is None:
        raise CheckpointError(f"{file.path}: these tensors are missing: {WHOLE['embedding']}")
    return embedding.shape[0]


def _layers(fields: Fields, family: str, tensors: Mapping[str, TensorEntry]) -> tuple[Attention, ...]:
    num_layers = fields.size("block_count", maximum=MAX_LAYERS)
    uses_factors = WHOLE["rope_factors"] in tensors
    if family == "gemma3":
        return _gemma3_layers(fields, num_layers)
    fields.refuse("attention.sliding_window")
    theta = fields.number("rope.freq_base", 10_000.0)
    return (Attention(Rope(theta, _scaling(fields), uses_factors)),) * num_layers


def _gemma3_layers(fields: Fields, num_layers: int) -> tuple[Attention, ...]:
    """Five local layers, then a global one; the file usually names neither that pattern nor the local rope base."""
    pattern = fields.size("attention.sliding_window_pattern", 6)
    local = Attention(Rope(fields.number("rope.freq_base_swa", 10_000.0)), fields.size("attention.sliding_window"))
    everywhere = Attention(Rope(fields.number("rope.freq_base", 1_000_000.0), _scaling(fields)))
    return tuple(everywhere if (index + 1) % pattern == 0 else local for index in range(num_layers))


def _mixture(fields: Fields) -> Mixture:
    num_experts = fields.size("expert_count")
    fields.refuse("expert_shared_count", "expert_shared_feed_forward_length", "leading_dense_block_count")
    return Mixture(
        num_experts=num_experts,
        experts_per_token=fields.size("expert_used_count", maximum=num_experts),
        expert_size=fields.size("expert_feed_forward_length"),
        normalized=True,
    )


def _scaling(fields: Fields) -> RopeScaling | None:
    kind = fields.word("rope.scaling.type", "none")
    if kind == "none":
        return None
    factor = fields.number("rope.scaling.factor")
    if kind == "linear":
        return LinearScaling(factor)
    if kind == "yarn":
        return YarnScaling(
            factor=factor,
            original_context=fields.size("rope.scaling.original_context_length"),
            attention_factor=fields.number("rope.scaling.attn_factor", 1.0) * (1 + 0.1 * math.log(max(factor, 1.0))),
            beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
            truncate=True,
        )
    raise fields.error("rope.scaling.type", f"{kind} is not supported; supported: none, linear, yarn")


def _context_window(fields: Fields) -> int:
    """The window after scaling: converters write either it or the original one, which is then named beside."""
    declared = fields.size("context_length")
    if not fields.has("rope.scaling.original_context_length"):
        return declared
    scaled = fields.size("rope.scaling.original_context_length") * fields.number("rope.scaling.factor", 1.0)
    return max(declared, int(scaled))


def _attention_scale(family: str, num_layers: int, hidden: int, num_heads: int, head_dim: int) -> float:
    """The file does not carry Gemma 3's query_pre_attn_scalar, which differs from head_dim in the 27B model alone."""
    gemma_27b = family == "gemma3" and num_layers == GEMMA3_27B_LAYERS
    return 1 / math.sqrt(hidden / num_heads if gemma_27b else head_dim)
