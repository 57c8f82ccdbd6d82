"""A GGUF file's keys as an Architecture, and its tensor names and conventions as the decoder's.

Owns what is particular to models in GGUF: key names, tensor names, the row order of Llama's queries and keys, the
things a converter leaves out (Gemma 3's local rope and layer pattern). Qwen3.5's norms and decays are stored as they
are computed with, and its value heads so that they share the key heads in turn. In: a `GgufFile`. It does not compute.
Source: llama.cpp's conversion and model graphs, by behaviour.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.kernels.stored import StoredTensor
from plimsoll_runtime.models.architecture import (
    SUPPORTED_FAMILIES,
    Architecture,
    Attention,
    GatedDelta,
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
from plimsoll_runtime.models.weights.fields import MAX_CONV_TOKENS, MAX_LAYERS, Fields
from plimsoll_runtime.models.weights.gguf import GgufFile
from plimsoll_runtime.models.weights.row_orders import gates_first, halves_order

DELTA_FAMILIES = ("qwen35", "qwen35moe")
FAMILIES = ("llama", "qwen2", "qwen3", "gemma3", "qwen3moe", *DELTA_FAMILIES)
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
    "shared_router": "ffn_gate_inp_shexp.weight",
    "delta_query_key_value": "attn_qkv.weight",
    "delta_gate": "attn_gate.weight",
    "delta_beta": "ssm_beta.weight",
    "delta_alpha": "ssm_alpha.weight",
    "delta_conv": "ssm_conv1d.weight",
    "delta_decay": "ssm_a",
    "delta_step_bias": "ssm_dt.bias",
    "delta_norm": "ssm_norm.weight",
    "delta_output": "ssm_out.weight",
}
DELTA_PARTS: Mapping[str, str] = {**PARTS, "feed_forward_norm": "post_attention_norm.weight"}
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
        self.roles = roles

    @property
    def num_bytes(self) -> int:
        return sum(entry.num_bytes for entry in self.roles.values())

    @property
    def layer_storages(self) -> frozenset[str]:
        return layer_storages(self.roles)

    def read(self, role: str) -> StoredTensor:
        stored, shape = read_bytes(self.roles[role]), self._architecture
        part = role.rpartition(".")[2]
        if shape.gated_attention and part == "query":
            return stored.take_rows(gates_first(shape.num_heads, shape.head_dim))
        if shape.family != "llama" or part not in ("query", "key"):
            return stored
        num_heads = shape.num_heads if part == "query" else shape.num_kv_heads
        return stored.take_rows(halves_order(num_heads, shape.head_dim))


def read_architecture(file: GgufFile) -> Architecture:
    """The architecture that the keys describe. Raises CheckpointError naming the key."""
    general = Fields(file.path, file.metadata)
    family = general.word("general.architecture")
    if family not in FAMILIES:
        raise CheckpointError(
            f"{file.path}: general.architecture {family} is not supported; supported: {', '.join(SUPPORTED_FAMILIES)}"
        )
    fields = Fields(file.path, file.metadata, f"{family}.")
    mixture = _mixture(fields, family) if family.endswith("moe") else None
    if mixture is None:
        fields.require("expert_count", 0)
    fields.refuse("attn_logit_softcapping", "final_logit_softcapping", "rope.scaling.yarn_log_multiplier")
    num_heads, hidden = fields.size("attention.head_count"), fields.size("embedding_length")
    head_dim = _head_dim(fields, family, hidden, num_heads)
    layers = _layers(fields, family, head_dim, file.tensors)
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
        query_key_norm=family not in ("llama", "qwen2"),
        sandwich_norms=gemma,
        tied_output=WHOLE["output"] not in file.tensors,
        mixture=mixture,
        gated_attention=family in DELTA_FAMILIES,
    )


def open_weights(file: GgufFile, architecture: Architecture) -> GgufWeights:
    """Finds every parameter's tensor. Raises CheckpointError naming a missing, unexpected or wrongly shaped one."""
    shapes = dict(parameter_shapes(architecture))
    if any(layer.rope.uses_factors for layer in architecture.attention_layers):
        shapes["rope_factors"] = (architecture.head_dim // 2,)
    parts = DELTA_PARTS if architecture.delta_layers else PARTS
    tensors = file.tensors if architecture.mixture is None else _split_experts(file.tensors)

    def drafts(name: str) -> bool:
        """Blocks behind the last layer predict tokens ahead, which is not done here."""
        index = name.removeprefix("blk.").partition(".")[0]
        return name.startswith("blk.") and index.isdigit() and int(index) >= architecture.num_layers

    is_ignorable = drafts if architecture.delta_layers else lambda name: False
    roles = match_roles(file.path, shapes, tensors, lambda role: _tensor_name(role, parts), is_ignorable)
    return GgufWeights(architecture, roles)


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


def _tensor_name(role: str, parts: Mapping[str, str]) -> str:
    if role in WHOLE:
        return WHOLE[role]
    _, index, *network, part = role.split(".")
    if not network:
        return f"blk.{index}.{parts[part]}"
    if network == ["shared"]:
        return f"blk.{index}.ffn_{part}_shexp.weight"
    return f"blk.{index}.{EXPERT_PARTS[part]}[{network[1]}]"


def _split_experts(tensors: Mapping[str, TensorEntry]) -> dict[str, TensorEntry]:
    """A layer's experts lie in one tensor of three dimensions: an entry for each of them, `NAME[X]`. The gate of the
    shared one is a vector, and to the decoder a matrix of one row."""
    split: dict[str, TensorEntry] = {}
    for name, entry in tensors.items():
        if name.endswith(tuple(EXPERT_PARTS.values())) and len(entry.shape) == 3:
            split |= {expert.name: expert for expert in split_first_dimension(entry)}
        elif name.endswith(PARTS["shared_router"]) and len(entry.shape) == 1:
            split[name] = replace(entry, shape=(1, *entry.shape))
        else:
            split[name] = entry
    return split


def _head_dim(fields: Fields, family: str, hidden: int, num_heads: int) -> int:
    head_dim = fields.size("attention.key_length", max(1, hidden // num_heads))
    fields.require("attention.value_length", head_dim)
    if family not in DELTA_FAMILIES:
        fields.require("rope.dimension_count", head_dim)
    if head_dim % 2:
        raise fields.error("attention.key_length", f"is {head_dim}; heads must have an even size")
    return head_dim


def _vocab_size(file: GgufFile) -> int:
    embedding = file.tensors.get(WHOLE["embedding"])
    if embedding is None:
        raise CheckpointError(f"{file.path}: these tensors are missing: {WHOLE['embedding']}")
    return embedding.shape[0]


def _layers(
    fields: Fields, family: str, head_dim: int, tensors: Mapping[str, TensorEntry]
) -> tuple[Attention | GatedDelta, ...]:
    if family in DELTA_FAMILIES:
        return _delta_layers(fields, head_dim)
    num_layers = fields.size("block_count", maximum=MAX_LAYERS)
    uses_factors = WHOLE["rope_factors"] in tensors
    if family == "gemma3":
        return _gemma3_layers(fields, num_layers)
    fields.refuse("attention.sliding_window")
    theta = fields.number("rope.freq_base", 10_000.0)
    return (Attention(Rope(theta, _scaling(fields), uses_factors)),) * num_layers


def _delta_layers(fields: Fields, head_dim: int) -> tuple[Attention | GatedDelta, ...]:
    """Gated delta nets, with full attention at the end of every interval; blocks that draft come behind them."""
    fields.refuse("attention.recurrent_layers")
    num_layers = fields.size("block_count", maximum=MAX_LAYERS)
    if fields.raw("nextn_predict_layers") not in (None, 0):
        num_layers -= fields.size("nextn_predict_layers", maximum=num_layers - 1)
    num_value_heads = fields.size("ssm.time_step_rank")
    for key, of in (("ssm.time_step_rank", "ssm.group_count"), ("ssm.inner_size", "ssm.time_step_rank")):
        fields.require_multiple(key, of)
    delta = GatedDelta(
        num_key_heads=fields.size("ssm.group_count"),
        num_value_heads=num_value_heads,
        key_dim=fields.size("ssm.state_size"),
        value_dim=fields.size("ssm.inner_size") // num_value_heads,
        conv_tokens=fields.size("ssm.conv_kernel", maximum=MAX_CONV_TOKENS),
        tiled=True,
    )
    turned_dims = fields.size("rope.dimension_count", maximum=head_dim)
    if turned_dims % 2:
        raise fields.error("rope.dimension_count", f"is {turned_dims}; so many elements turn in pairs")
    rope = Rope(fields.number("rope.freq_base"), _scaling(fields), turned_dims=turned_dims)
    interval = fields.size("full_attention_interval", 4, maximum=num_layers)
    return tuple(delta if (index + 1) % interval else Attention(rope) for index in range(num_layers))


def _gemma3_layers(fields: Fields, num_layers: int) -> tuple[Attention, ...]:
    """Five local layers, then a global one; the file usually names neither that pattern nor the local rope base."""
    pattern = fields.size("attention.sliding_window_pattern", 6)
    local = Attention(Rope(fields.number("rope.freq_base_swa", 10_000.0)), fields.size("attention.sliding_window"))
    everywhere = Attention(Rope(fields.number("rope.freq_base", 1_000_000.0), _scaling(fields)))
    return tuple(everywhere if (index + 1) % pattern == 0 else local for index in range(num_layers))


def _mixture(fields: Fields, family: str) -> Mixture:
    num_experts = fields.size("expert_count")
    has_shared = family in DELTA_FAMILIES
    fields.refuse("expert_shared_count", "leading_dense_block_count")
    if not has_shared:
        fields.refuse("expert_shared_feed_forward_length")
    return Mixture(
        num_experts=num_experts,
        experts_per_token=fields.size("expert_used_count", maximum=num_experts),
        expert_size=fields.size("expert_feed_forward_length"),
        normalized=True,
        shared_size=fields.size("expert_shared_feed_forward_length") if has_shared else 0,
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
