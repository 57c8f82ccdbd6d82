"""Tiny random models of every family, as transformers builds them, saved as safetensors folders and as GGUF files.

Every parameter gets noise, norms included: fresh norms are all ones (or zeros in Gemma), and a loader that forgot them
would pass.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import save_file

from kernels.random_weights import HALF_OFFSETS, random_bytes
from plimsoll_runtime.kernels.stored import STORAGES

SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "eos_token_id": [2, 5],
}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64}


@dataclass(frozen=True, slots=True)
class Family:
    """How transformers calls a family, and what its config adds to SIZES."""

    model_class: str
    config_class: str
    settings: Mapping[str, Any]


FAMILIES: Mapping[str, Family] = {
    "llama": Family("LlamaForCausalLM", "LlamaConfig", {"tie_word_embeddings": False}),
    "llama_tied": Family("LlamaForCausalLM", "LlamaConfig", {"tie_word_embeddings": True}),
    "llama_llama3": Family("LlamaForCausalLM", "LlamaConfig", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama_linear": Family("LlamaForCausalLM", "LlamaConfig", {"rope_parameters": LINEAR}),
    "llama_yarn": Family("LlamaForCausalLM", "LlamaConfig", {"rope_parameters": YARN}),
    "qwen2": Family("Qwen2ForCausalLM", "Qwen2Config", {"head_dim": 16, "rope_parameters": {"rope_theta": 1e6}}),
    "qwen3": Family("Qwen3ForCausalLM", "Qwen3Config", {}),
    "gemma3": Family(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {"num_hidden_layers": 7, "sliding_window": 16, "query_pre_attn_scalar": 32},
    ),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "norm_topk_prob": True},
    ),
}
DELTA: dict[str, Any] = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25,
                        "mrope_section": [2, 1, 1], "mrope_interleaved": True},
}  # fmt: skip
DELTA_FAMILIES: Mapping[str, Family] = {
    "qwen3_5": Family("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", DELTA),
    "qwen3_5_moe": Family(
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeTextConfig",
        {
            **DELTA,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 64,
        },
    ),
}
"""Three gated delta nets, then full attention."""

EXPERTS = "mlp.experts."


def build(family: str, **settings: Any) -> Any:
    """A transformers model in float32 on the eager attention path, the same weights on every call."""
    made = {**FAMILIES, **DELTA_FAMILIES}[family]
    torch.manual_seed(0)
    config = getattr(transformers, made.config_class)(**{**SIZES, **made.settings, **settings})
    config._attn_implementation = "eager"
    model = getattr(transformers, made.model_class)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def save_folder(model: Any, folder: Path, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    return folder


def save_as_seeing(model: Any, folder: Path) -> Path:
    """Qwen3.5's text inside a model with eyes, tensors named as in memory, with tensors that no text needs."""
    names = {name: name.replace("model.", "model.language_model.", 1) for name, _ in model.named_parameters()}
    tensors = {names[name]: parameter.detach().clone() for name, parameter in model.named_parameters()}
    tensors |= {"model.visual.merger.norm.weight": torch.ones(4), "mtp.fc.weight": torch.ones(4, 4)}
    save_file(tensors, folder / "model.safetensors")
    text = model.config.to_dict()
    config = {
        "model_type": text["model_type"].removesuffix("_text"),
        "text_config": text,
        "vision_config": {"depth": 1},
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def logits_of(model: Any, token_ids: list[int]) -> torch.Tensor:
    """`[T, V]`."""
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([token_ids])).logits[0]
    return logits


def gguf_names(model: Any) -> dict[str, str]:
    """The model's parameter names, and what the `gguf` library calls them; experts are `_expert_tensors`."""
    architecture = next(member for member, name in gguf.MODEL_ARCH_NAMES.items() if name == gguf_family(model))
    names: Any = gguf.get_tensor_name_map(architecture, model.config.num_hidden_layers)
    plain = [name for name, _ in model.named_parameters() if EXPERTS not in name]
    written = {name: name.replace(".dt_bias", ".dt_proj.bias") for name in plain}
    return {name: names.get_name(written[name], try_suffixes=(".weight", ".bias")) for name in plain}


def gguf_family(model: Any) -> str:
    name: str = model.config.model_type
    return name.removesuffix("_text").replace("_moe", "moe").replace("3_5", "35")


def _expert_tensors(model: Any) -> dict[str, torch.Tensor]:
    """Views `[X, R, C]` of the experts' weights under GGUF's names: transformers keeps gate and up as one."""
    tensors: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        prefix = f"blk.{name.split('.')[2]}.ffn" if EXPERTS in name else ""
        if name.endswith(EXPERTS + "gate_up_proj"):
            gate, up = parameter.chunk(2, 1)
            tensors |= {f"{prefix}_gate_exps.weight": gate, f"{prefix}_up_exps.weight": up}
        elif name.endswith(EXPERTS + "down_proj"):
            tensors[f"{prefix}_down_exps.weight"] = parameter
    return tensors


def _to_gguf(model: Any, name: str, values: torch.Tensor) -> np.ndarray:
    """One parameter in GGUF's conventions, float32."""
    config = model.config
    if config.model_type.startswith("qwen3_5"):
        return _delta_to_gguf(config, name, values.detach().clone()).numpy()
    if config.model_type == "gemma3_text" and name.endswith("norm.weight"):
        values = values + 1
    if config.model_type == "llama" and ("q_proj" in name or "k_proj" in name):
        values = values.view(-1, 2, config.head_dim // 2, config.hidden_size).transpose(1, 2).reshape(values.shape)
    return values.detach().numpy().copy()


def _from_gguf(model: Any, name: str, values: np.ndarray) -> torch.Tensor:
    """The way back, for a matrix."""
    config = model.config
    if config.model_type.startswith("qwen3_5"):
        rows, columns = _value_head_orders(config, name)
        restored = torch.from_numpy(values.copy()).reshape(model.get_parameter(name).shape)
        restored = restored if rows is None else restored[rows.argsort()]
        return restored if columns is None else restored[:, columns.argsort()]
    if config.model_type == "llama" and ("q_proj" in name or "k_proj" in name):
        values = values.reshape(-1, config.head_dim // 2, 2, config.hidden_size).swapaxes(1, 2).reshape(values.shape)
    return torch.from_numpy(values.copy())


def _delta_to_gguf(config: Any, name: str, values: torch.Tensor) -> torch.Tensor:
    """What llama.cpp's converter makes of Qwen3.5: norms plus one, decays computed, value heads in turn."""
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        return values + 1
    rows, columns = _value_head_orders(config, name)
    values = values if rows is None else values[rows]
    values = values if columns is None else values[:, columns]
    return -values.exp() if name.endswith("A_log") else values.squeeze()


def _value_head_orders(config: Any, name: str) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Which rows and columns of a gated delta net's parameter come first, second, ... in GGUF."""
    keys, heads, size = config.linear_num_key_heads, config.linear_num_value_heads, config.linear_value_head_dim
    order = torch.arange(heads).view(keys, heads // keys).t().reshape(-1)
    by_element = (order[:, None] * size + torch.arange(size)).reshape(-1)
    before = torch.arange(2 * keys * config.linear_key_head_dim)
    match name.rpartition("linear_attn.")[2].removesuffix(".weight"):
        case "A_log" | "dt_bias" | "in_proj_a" | "in_proj_b":
            return order, None
        case "in_proj_z":
            return by_element, None
        case "in_proj_qkv" | "conv1d":
            return torch.cat((before, len(before) + by_element)), None
        case "out_proj":
            return None, by_element
        case _:
            return None, None


def gguf_settings(model: Any) -> dict[str, Any]:
    """Keys without the family's prefix."""
    config = model.config
    settings: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim if hasattr(config, "head_dim") else 16,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }
    if hasattr(config, "intermediate_size"):
        settings["feed_forward_length"] = config.intermediate_size
    if hasattr(config, "num_experts"):
        settings["expert_count"] = config.num_experts
        settings["expert_used_count"] = config.num_experts_per_tok
        settings["expert_feed_forward_length"] = config.moe_intermediate_size
    rope = config.rope_parameters
    if config.model_type.startswith("qwen3_5"):
        settings["full_attention_interval"] = 4
        settings["rope.dimension_count"] = int(config.head_dim * rope["partial_rotary_factor"])
        settings["ssm.conv_kernel"] = config.linear_conv_kernel_dim
        settings["ssm.state_size"] = config.linear_key_head_dim
        settings["ssm.group_count"] = config.linear_num_key_heads
        settings["ssm.time_step_rank"] = config.linear_num_value_heads
        settings["ssm.inner_size"] = config.linear_num_value_heads * config.linear_value_head_dim
    if hasattr(config, "shared_expert_intermediate_size"):
        settings["expert_shared_feed_forward_length"] = config.shared_expert_intermediate_size
    if config.model_type == "gemma3_text":
        return settings | {"attention.sliding_window": config.sliding_window, "rope.freq_base": 1e6}
    if rope["rope_type"] in ("linear", "yarn"):
        settings |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
    if rope["rope_type"] == "yarn":
        settings["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    return settings | {"rope.freq_base": rope["rope_theta"]}


def write_gguf(
    path: Path, family: str, settings: Mapping[str, Any], tensors: Mapping[str, tuple[str, np.ndarray]], **extra: Any
) -> Path:
    """`tensors`: name -> (storage, values or raw bytes of a quantized storage). `extra` keys stand as given."""
    writer = gguf.GGUFWriter(path, family)
    for key, value in settings.items():
        _add(writer, f"{family}.{key}", value)
    for key, value in extra.items():
        _add(writer, key, value)
    for name, (storage, values) in tensors.items():
        writer.add_tensor(name, values, raw_dtype=gguf.GGMLQuantizationType[storage])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: Any, key: str, value: Any) -> None:
    adders: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
        str: writer.add_string, list: writer.add_array,
    }  # fmt: skip
    adders[type(value)](key, value)


def save_gguf(model: Any, path: Path, storage: str = "F32", **extra: Any) -> Path:
    """Saves the model with its matrices in `storage`, and sets the model's own weights to what that storage made of
    them, so that its logits are the reference for the file."""
    tensors = {}
    for name, gguf_name in gguf_names(model).items():
        parameter = model.get_parameter(name)
        kind, data = _stored(gguf_name, _to_gguf(model, name, parameter), storage)
        tensors[gguf_name] = (kind, data)
        if kind != "F32":
            with torch.no_grad():
                parameter.copy_(_from_gguf(model, name, gguf.dequantize(data, gguf.GGMLQuantizationType[kind])))
    for gguf_name, weights in _expert_tensors(model).items():
        kind, data = _stored(gguf_name, weights.detach().numpy().copy(), storage)
        tensors[gguf_name] = (kind, data)
        if kind != "F32":
            with torch.no_grad():
                weights.copy_(torch.from_numpy(gguf.dequantize(data, gguf.GGMLQuantizationType[kind])))
    if model.config.model_type != "gemma3_text" and model.config.rope_parameters["rope_type"] == "llama3":
        tensors["rope_freqs.weight"] = ("F32", _llama3_factors(model))
    return write_gguf(path, gguf_family(model), gguf_settings(model), tensors, **extra)


def _stored(name: str, values: np.ndarray, storage: str) -> tuple[str, np.ndarray]:
    if values.ndim == 1 or storage == "F32" or "ffn_gate_inp" in name or "ssm_conv1d" in name:
        return "F32", values
    if storage in HALF_OFFSETS and STORAGES[storage].group_weights == 256:
        *rows, columns = values.shape
        data = random_bytes(storage, math.prod(rows), columns, seed=sum(name.encode()))
        return storage, data.reshape(*rows, -1)
    return storage, gguf.quantize(values, gguf.GGMLQuantizationType[storage])


def _llama3_factors(model: Any) -> np.ndarray:
    """What a converter writes as `rope_freqs.weight`: plain frequencies over scaled ones."""
    config = model.config
    plain = 1.0 / (config.rope_parameters["rope_theta"] ** (np.arange(0, config.head_dim, 2) / config.head_dim))
    factors: np.ndarray = (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
    return factors
