"""A Hugging Face folder's config.json as an Architecture, and its tensor names and conventions as the decoder's.

Owns what is particular to that layout: keys old and new (`rope_scaling` and `rope_parameters`), defaults of the
families' config classes, tensor names, norms that are stored as the difference from one. It does not compute.
Source: the config classes of transformers 5, by behaviour. A setting that would change the result and is not computed
here is refused by name.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from plimsoll_runtime.kernels.reference import dequantize
from plimsoll_runtime.kernels.stored import StoredTensor, store_floats
from plimsoll_runtime.models.architecture import (
    SUPPORTED_FAMILIES,
    Architecture,
    Attention,
    GatedDelta,
    LinearScaling,
    Llama3Scaling,
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
from plimsoll_runtime.models.weights.row_orders import gates_first

DELTA_FAMILIES = ("qwen3_5_text", "qwen3_5_moe_text")
FAMILIES = ("llama", "qwen2", "qwen3", "gemma3_text", "qwen3_moe", *DELTA_FAMILIES)
TEXT_PARTS: Mapping[str, str] = {"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}
"""Models that also see: their text is served alone, and described under `text_config`."""

OUTPUT_NAME = "lm_head.weight"
DEFAULT_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

PARTS: Mapping[str, str] = {
    "attention_norm": "input_layernorm.weight",
    "query": "self_attn.q_proj.weight",
    "key": "self_attn.k_proj.weight",
    "value": "self_attn.v_proj.weight",
    "query_bias": "self_attn.q_proj.bias",
    "key_bias": "self_attn.k_proj.bias",
    "value_bias": "self_attn.v_proj.bias",
    "query_norm": "self_attn.q_norm.weight",
    "key_norm": "self_attn.k_norm.weight",
    "attention_output": "self_attn.o_proj.weight",
    "feed_forward_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "router": "mlp.gate.weight",
    "shared_router": "mlp.shared_expert_gate.weight",
    "delta_query_key_value": "linear_attn.in_proj_qkv.weight",
    "delta_gate": "linear_attn.in_proj_z.weight",
    "delta_beta": "linear_attn.in_proj_b.weight",
    "delta_alpha": "linear_attn.in_proj_a.weight",
    "delta_conv": "linear_attn.conv1d.weight",
    "delta_decay": "linear_attn.A_log",
    "delta_step_bias": "linear_attn.dt_bias",
    "delta_norm": "linear_attn.norm.weight",
    "delta_output": "linear_attn.out_proj.weight",
}
SANDWICH_PARTS: Mapping[str, str] = {
    **PARTS,
    "post_attention_norm": "post_attention_layernorm.weight",
    "feed_forward_norm": "pre_feedforward_layernorm.weight",
    "post_feed_forward_norm": "post_feedforward_layernorm.weight",
}
CENTRED_NORM_FAMILIES = ("gemma3_text", *DELTA_FAMILIES)
WHOLE: Mapping[str, str] = {
    "embedding": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "output": OUTPUT_NAME,
}


class FolderWeights:
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
        if shape.family in CENTRED_NORM_FAMILIES and part.endswith("norm") and part != "delta_norm":
            return store_floats(dequantize(stored) + 1)  # these families store a norm as its difference from one
        if part == "delta_decay":
            return store_floats(-dequantize(stored).exp())
        if shape.gated_attention and part == "query":
            return stored.take_rows(gates_first(shape.num_heads, shape.head_dim))
        return stored


def read_architecture(path: Path, config: Mapping[str, Any]) -> Architecture:
    """The architecture that config.json describes. Raises CheckpointError naming the field.

    A tied model that ships an output matrix all the same keeps its own, as in transformers; only the caller knows.
    """
    fields = Fields(path, config)
    fields.refuse("auto_map", "quantization_config")
    family = fields.word("model_type")
    if family in TEXT_PARTS:
        fields, family = _text_part(fields), TEXT_PARTS[family]
    if family not in FAMILIES:
        raise CheckpointError(
            f"{path}: model_type {family} is not supported; supported: {', '.join(SUPPORTED_FAMILIES)}"
        )
    _refuse_variants(fields)
    num_heads, hidden = fields.size("num_attention_heads"), fields.size("hidden_size")
    head_dim = fields.size("head_dim", 256 if family == "gemma3_text" else max(1, hidden // num_heads))
    if head_dim % 2:
        raise fields.error("head_dim", f"is {head_dim}; heads must have an even size")
    gemma = family == "gemma3_text"
    mixture = _mixture(fields, family) if "moe" in family else None
    layers = _layers(fields, family, head_dim)
    return Architecture(
        family=family,
        num_layers=len(layers),
        num_heads=num_heads,
        num_kv_heads=fields.size("num_key_value_heads", num_heads, maximum=num_heads),
        head_dim=head_dim,
        hidden_size=hidden,
        feed_forward_size=fields.size("intermediate_size") if mixture is None else mixture.expert_size,
        vocab_size=fields.size("vocab_size"),
        context_window=_context_window(fields, layers, gemma),
        layers=layers,
        norm_epsilon=fields.number("rms_norm_eps", 1e-6),
        attention_scale=1 / math.sqrt(fields.number("query_pre_attn_scalar", 256.0) if gemma else head_dim),
        embedding_scale=math.sqrt(hidden) if gemma else 1.0,
        activation="gelu_tanh" if gemma else "silu",
        qkv_bias=family == "qwen2",
        query_key_norm=family not in ("llama", "qwen2"),
        sandwich_norms=gemma,
        tied_output=fields.flag("tie_word_embeddings", gemma),
        mixture=mixture,
        gated_attention=family in DELTA_FAMILIES,
    )


def open_weights(source: Path, entries: Mapping[str, TensorEntry], architecture: Architecture) -> FolderWeights:
    """Finds every parameter's tensor. Raises CheckpointError naming a missing, unexpected or wrongly shaped one."""
    parts = SANDWICH_PARTS if architecture.sandwich_norms else PARTS

    def name_of(role: str) -> str:
        if role in WHOLE:
            return WHOLE[role]
        _, index, *network, part = role.split(".")
        if not network:
            return f"model.layers.{index}.{parts[part]}"
        owner = "shared_expert" if network == ["shared"] else f"experts.{network[1]}"
        return f"model.layers.{index}.mlp.{owner}.{part}_proj.weight"

    shapes = parameter_shapes(architecture)
    if architecture.family in DELTA_FAMILIES:
        entries = _text_entries(entries)
    return FolderWeights(architecture, match_roles(source, shapes, entries, name_of, _is_ignorable))


def _text_entries(entries: Mapping[str, TensorEntry]) -> dict[str, TensorEntry]:
    """The entries of Qwen3.5's text under plain names: `language_model.` taken out, what sees and what drafts left out,
    fused experts split, the convolution's weights as a matrix."""
    found: dict[str, TensorEntry] = {}
    for original, entry in entries.items():
        name = original.replace("model.language_model.", "model.", 1)
        if name.startswith(("model.visual.", "mtp.")):
            continue
        if name.endswith((".experts.gate_up_proj", ".experts.down_proj")) and len(entry.shape) == 3:
            found |= _split_experts(name, entry)
        elif name.endswith(".conv1d.weight") and len(entry.shape) == 3 and entry.shape[1] == 1:
            found[name] = replace(entry, shape=(entry.shape[0], entry.shape[2]))
        else:
            found[name] = entry
    return found


def _split_experts(name: str, entry: TensorEntry) -> dict[str, TensorEntry]:
    """One entry for each expert's matrix; gate and up lie one below the other."""
    prefix, _, part = name.rpartition(".")
    found: dict[str, TensorEntry] = {}
    for index, expert in enumerate(split_first_dimension(entry)):
        halves = {part: expert}
        if part == "gate_up_proj":
            rows = expert.shape[0] // 2
            half = replace(expert, shape=(rows, expert.shape[1]), num_bytes=expert.num_bytes // 2)
            halves = {"gate_proj": half, "up_proj": replace(half, offset=half.offset + half.num_bytes)}
        found |= {f"{prefix}.{index}.{half_part}.weight": half for half_part, half in halves.items()}
    return found


def end_token_ids(*configs: Mapping[str, Any]) -> frozenset[int]:
    """The union of `eos_token_id` (a number or a list) of the model's, its text part's and the generation config."""
    found: set[int] = set()
    for config in [*configs, *(config.get("text_config") or {} for config in configs)]:
        value = config.get("eos_token_id")
        found |= {item for item in (value if isinstance(value, list) else [value]) if isinstance(item, int)}
    return frozenset(found)


def sampling_defaults(generation_config: Mapping[str, Any]) -> dict[str, float | int]:
    """The sampling numbers of generation_config.json, as they stand there."""
    values = {key: generation_config.get(key) for key in DEFAULT_KEYS}
    return {
        key: value for key, value in values.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _is_ignorable(name: str) -> bool:
    """Frequencies that old releases saved although they follow from the config."""
    return name.endswith("rotary_emb.inv_freq")


def _refuse_variants(fields: Fields) -> None:
    fields.require("hidden_act", "silu")
    fields.require("hidden_activation", "gelu_pytorch_tanh")
    for switch in ("attention_bias", "mlp_bias", "use_sliding_window", "use_bidirectional_attention"):
        fields.require(switch, False)
    fields.refuse("attn_logit_softcapping", "final_logit_softcapping")


def _text_part(fields: Fields) -> Fields:
    """`text_config`, with the whole model's word on tying, where it has one."""
    text = fields.section("text_config")
    tied = "tie_word_embeddings"
    return text if not fields.has(tied) else text.replaced(tied, fields.raw(tied))


def _mixture(fields: Fields, family: str) -> Mixture:
    """Every layer must be a mixture: a dense one between them is refused."""
    fields.require("decoder_sparse_step", 1)
    fields.require("mlp_only_layers", [])
    num_experts = fields.size("num_local_experts" if fields.has("num_local_experts") else "num_experts")
    has_shared = family in DELTA_FAMILIES
    return Mixture(
        num_experts=num_experts,
        experts_per_token=fields.size("num_experts_per_tok", maximum=num_experts),
        expert_size=fields.size("moe_intermediate_size"),
        normalized=has_shared or fields.flag("norm_topk_prob", False),
        shared_size=fields.size("shared_expert_intermediate_size") if has_shared else 0,
    )


def _layers(fields: Fields, family: str, head_dim: int) -> tuple[Attention | GatedDelta, ...]:
    if family == "gemma3_text":
        return _gemma3_layers(fields)
    if family in DELTA_FAMILIES:
        return _delta_layers(fields, head_dim)
    kinds = fields.raw("layer_types")
    if kinds is not None and set(kinds) != {"full_attention"}:
        raise fields.error("layer_types", "has layers other than full_attention, which this family does not support")
    old = fields.section("rope_scaling")
    new = fields.section("rope_parameters")
    theta = new.number("rope_theta", fields.number("rope_theta", 10_000.0))
    section = old if fields.has("rope_scaling") else new
    section.require("partial_rotary_factor", 1, 1.0)
    return (Attention(Rope(theta, _scaling(fields, section))),) * fields.size("num_hidden_layers", maximum=MAX_LAYERS)


def _delta_layers(fields: Fields, head_dim: int) -> tuple[Attention | GatedDelta, ...]:
    """Gated delta nets with full attention between them. Text stands at one position in all three of the grids that
    `mrope_section` mixes, so that mixing changes nothing."""
    fields.require("attn_output_gate", True)
    rope = fields.section("rope_parameters")
    part = rope.number("partial_rotary_factor", fields.number("partial_rotary_factor", 0.25))
    turned_dims = int(head_dim * part)
    if turned_dims < 2 or turned_dims % 2 or turned_dims > head_dim:
        raise rope.error("partial_rotary_factor", f"is {part}, which turns {turned_dims} of {head_dim} elements")
    theta = rope.number("rope_theta", fields.number("rope_theta", 10_000.0))
    kinds: dict[str, Attention | GatedDelta] = {
        "linear_attention": GatedDelta(
            num_key_heads=fields.size("linear_num_key_heads"),
            num_value_heads=fields.size("linear_num_value_heads"),
            key_dim=fields.size("linear_key_head_dim"),
            value_dim=fields.size("linear_value_head_dim"),
            conv_tokens=fields.size("linear_conv_kernel_dim", maximum=MAX_CONV_TOKENS),
        ),
        "full_attention": Attention(Rope(theta, _scaling(fields, rope), turned_dims=turned_dims)),
    }
    fields.require_multiple("linear_num_value_heads", "linear_num_key_heads")
    names = _layer_types(fields, kinds, "linear_attention", "full_attention_interval", 4)
    if "full_attention" not in names:
        raise fields.error("layer_types", "has no full_attention; at least one layer must keep keys and values")
    return tuple(kinds[name] for name in names)


def _gemma3_layers(fields: Fields) -> tuple[Attention, ...]:
    ropes = fields.section("rope_parameters")
    local_rope, global_rope = ropes.section("sliding_attention"), ropes.section("full_attention")
    old = fields.section("rope_scaling")
    for rope in (local_rope, global_rope):
        rope.require("partial_rotary_factor", 1, 1.0)
    local_theta = local_rope.number("rope_theta", fields.number("rope_local_base_freq", 10_000.0))
    local_scaling = _scaling(fields, local_rope)
    global_theta = global_rope.number("rope_theta", fields.number("rope_theta", 1_000_000.0))
    global_scaling = _scaling(fields, old if fields.has("rope_scaling") else global_rope)
    kinds = {
        "sliding_attention": Attention(Rope(local_theta, local_scaling), fields.size("sliding_window", 4096)),
        "full_attention": Attention(Rope(global_theta, global_scaling)),
    }
    old_key = "_sliding_window_pattern"
    pattern = "sliding_window_pattern" if fields.has("sliding_window_pattern") else old_key
    return tuple(kinds[name] for name in _layer_types(fields, kinds, "sliding_attention", pattern, 6))


def _layer_types(fields: Fields, kinds: Mapping[str, object], usual: str, key: str, interval: int) -> list[str]:
    """`layer_types`; where that is absent, every layer is the usual one but each `interval`th, which attends fully."""
    num_layers = fields.size("num_hidden_layers", maximum=MAX_LAYERS)
    names = fields.raw("layer_types")
    if names is None:
        interval = fields.size(key, interval)
        return [usual if (index + 1) % interval else "full_attention" for index in range(num_layers)]
    if not isinstance(names, list) or len(names) != num_layers:
        raise fields.error("layer_types", f"is not a list of num_hidden_layers = {num_layers} names")
    unknown = sorted({str(name) for name in names} - kinds.keys())
    if unknown:
        raise fields.error("layer_types", f"has {unknown[0]}; supported: {', '.join(kinds)}")
    return names


def _scaling(fields: Fields, rope: Fields) -> RopeScaling | None:
    """The key is `rope_type`, in older files `type`."""
    kind = rope.word("rope_type", rope.word("type", "default"))
    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(rope.number("factor"))
        case "llama3":
            return Llama3Scaling(
                factor=rope.number("factor"),
                low_frequency_factor=rope.number("low_freq_factor"),
                high_frequency_factor=rope.number("high_freq_factor"),
                original_context=_original_context(fields, rope),
            )
        case "yarn":
            return _yarn(fields, rope)
        case _:
            raise rope.error("rope_type", f"{kind} is not supported; supported: default, linear, llama3, yarn")


def _yarn(fields: Fields, rope: Fields) -> YarnScaling:
    rope.refuse("mscale", "mscale_all_dim")
    factor = rope.number("factor")
    return YarnScaling(
        factor=factor,
        original_context=_original_context(fields, rope),
        attention_factor=rope.number("attention_factor", 1 + 0.1 * math.log(max(factor, 1.0))),
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
    )


def _original_context(fields: Fields, rope: Fields) -> int:
    return rope.size("original_max_position_embeddings", fields.size("max_position_embeddings"))


def _context_window(fields: Fields, layers: tuple[Attention | GatedDelta, ...], gemma: bool) -> int:
    """`max_position_embeddings` is the scaled window for Llama 3 and Gemma 3, the original one for linear and yarn."""
    declared = fields.size("max_position_embeddings")
    attention = [layer for layer in layers if isinstance(layer, Attention)]
    match attention[-1].rope.scaling if attention else None:
        case LinearScaling(factor) if not gemma:
            return int(declared * factor)
        case YarnScaling() as yarn if not gemma:
            return max(declared, int(yarn.original_context * yarn.factor))
        case _:
            return declared
