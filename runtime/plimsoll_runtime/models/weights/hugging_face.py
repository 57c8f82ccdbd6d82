"""A Hugging Face folder's config.json as an Architecture, and its tensor names and conventions as the decoder's.

Owns what is particular to that layout: keys old and new (`rope_scaling` and `rope_parameters`), defaults of the four
families' config classes, tensor names, Gemma's norms that are stored as the difference from one. It does not compute.
Source: the config classes of transformers 5, by behaviour. A setting that would change the result and is not computed
here is refused by name.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plimsoll_runtime.kernels.reference import dequantize
from plimsoll_runtime.kernels.stored import StoredTensor, store_floats
from plimsoll_runtime.models.architecture import (
    SUPPORTED_FAMILIES,
    Architecture,
    Attention,
    LinearScaling,
    Llama3Scaling,
    Mixture,
    Rope,
    RopeScaling,
    YarnScaling,
    parameter_shapes,
)
from plimsoll_runtime.models.weights.entries import TensorEntry, layer_storages, match_roles
from plimsoll_runtime.models.weights.errors import CheckpointError
from plimsoll_runtime.models.weights.fields import Fields
from plimsoll_runtime.models.weights.safetensors import read_tensor

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3_text", "qwen3_moe")
MAX_LAYERS = 1024
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
}
SANDWICH_PARTS: Mapping[str, str] = {
    **PARTS,
    "post_attention_norm": "post_attention_layernorm.weight",
    "feed_forward_norm": "pre_feedforward_layernorm.weight",
    "post_feed_forward_norm": "post_feedforward_layernorm.weight",
}
WHOLE: Mapping[str, str] = {
    "embedding": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "output": OUTPUT_NAME,
}


class FolderWeights:
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
        stored = read_tensor(self._roles[role])
        if self._architecture.sandwich_norms and role.endswith("norm"):
            return store_floats(dequantize(stored) + 1)  # Gemma stores a norm as its difference from one
        return stored


def read_architecture(path: Path, config: Mapping[str, Any]) -> Architecture:
    """The architecture that config.json describes. Raises CheckpointError naming the field.

    A tied model that ships an output matrix all the same keeps its own, as in transformers; only the caller knows.
    """
    fields = Fields(path, config)
    fields.refuse("auto_map", "quantization_config")
    family = fields.word("model_type")
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
    mixture = _mixture(fields) if family == "qwen3_moe" else None
    layers = _gemma3_layers(fields) if gemma else _plain_layers(fields)
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
        query_key_norm=family in ("qwen3", "gemma3_text", "qwen3_moe"),
        sandwich_norms=gemma,
        tied_output=fields.flag("tie_word_embeddings", gemma),
        mixture=mixture,
    )


def open_weights(source: Path, entries: Mapping[str, TensorEntry], architecture: Architecture) -> FolderWeights:
    """Finds every parameter's tensor. Raises CheckpointError naming a missing, unexpected or wrongly shaped one."""
    parts = SANDWICH_PARTS if architecture.sandwich_norms else PARTS

    def name_of(role: str) -> str:
        if role in WHOLE:
            return WHOLE[role]
        _, index, *expert, part = role.split(".")
        name = f"mlp.experts.{expert[1]}.{part}_proj.weight" if expert else parts[part]
        return f"model.layers.{index}.{name}"

    shapes = parameter_shapes(architecture)
    return FolderWeights(architecture, match_roles(source, shapes, entries, name_of, _is_ignorable))


def end_token_ids(*configs: Mapping[str, Any]) -> frozenset[int]:
    """The union of `eos_token_id` (a number or a list) of the model's and the generation config."""
    found: set[int] = set()
    for config in configs:
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


def _mixture(fields: Fields) -> Mixture:
    """Every layer must be a mixture: a dense one between them is refused."""
    fields.require("decoder_sparse_step", 1)
    fields.require("mlp_only_layers", [])
    num_experts = fields.size("num_local_experts" if fields.has("num_local_experts") else "num_experts")
    return Mixture(
        num_experts=num_experts,
        experts_per_token=fields.size("num_experts_per_tok", maximum=num_experts),
        expert_size=fields.size("moe_intermediate_size"),
        normalized=fields.flag("norm_topk_prob", False),
    )


def _plain_layers(fields: Fields) -> tuple[Attention, ...]:
    kinds = fields.raw("layer_types")
    if kinds is not None and set(kinds) != {"full_attention"}:
        raise fields.error("layer_types", "has layers other than full_attention, which this family does not support")
    old = fields.section("rope_scaling")
    new = fields.section("rope_parameters")
    theta = new.number("rope_theta", fields.number("rope_theta", 10_000.0))
    rope = Rope(theta, _scaling(fields, old if fields.has("rope_scaling") else new))
    return (Attention(rope),) * fields.size("num_hidden_layers", maximum=MAX_LAYERS)


def _gemma3_layers(fields: Fields) -> tuple[Attention, ...]:
    ropes = fields.section("rope_parameters")
    local_rope, global_rope = ropes.section("sliding_attention"), ropes.section("full_attention")
    old = fields.section("rope_scaling")
    local_theta = local_rope.number("rope_theta", fields.number("rope_local_base_freq", 10_000.0))
    local_scaling = _scaling(fields, local_rope)
    global_theta = global_rope.number("rope_theta", fields.number("rope_theta", 1_000_000.0))
    global_scaling = _scaling(fields, old if fields.has("rope_scaling") else global_rope)
    kinds = {
        "sliding_attention": Attention(Rope(local_theta, local_scaling), fields.size("sliding_window", 4096)),
        "full_attention": Attention(Rope(global_theta, global_scaling)),
    }
    names = _gemma3_layer_types(fields)
    unknown = sorted({str(name) for name in names} - kinds.keys())
    if unknown:
        raise fields.error("layer_types", f"has {unknown[0]}; supported: {', '.join(kinds)}")
    return tuple(kinds[name] for name in names)


def _gemma3_layer_types(fields: Fields) -> list[Any]:
    num_layers = fields.size("num_hidden_layers", maximum=MAX_LAYERS)
    names = fields.raw("layer_types")
    if names is None:
        pattern = fields.size("sliding_window_pattern", fields.size("_sliding_window_pattern", 6))
        return ["sliding_attention" if (index + 1) % pattern else "full_attention" for index in range(num_layers)]
    if not isinstance(names, list) or len(names) != num_layers:
        raise fields.error("layer_types", f"is not a list of num_hidden_layers = {num_layers} names")
    return names


def _scaling(fields: Fields, rope: Fields) -> RopeScaling | None:
    """The key is `rope_type`, in older files `type`."""
    kind = rope.word("rope_type", rope.word("type", "default"))
    rope.require("partial_rotary_factor", 1, 1.0)
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


def _context_window(fields: Fields, layers: tuple[Attention, ...], gemma: bool) -> int:
    """`max_position_embeddings` is the scaled window for Llama 3 and Gemma 3, the original one for linear and yarn."""
    declared = fields.size("max_position_embeddings")
    match layers[-1].rope.scaling:
        case LinearScaling(factor) if not gemma:
            return int(declared * factor)
        case YarnScaling() as yarn if not gemma:
            return max(declared, int(yarn.original_context * yarn.factor))
        case _:
            return declared
