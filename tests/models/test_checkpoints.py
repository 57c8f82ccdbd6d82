"""Folders and files that cannot be served are refused naming file and field; opened ones say what the model is.

One row per fault: what is done to a good model, and the sentence.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.tiny_models import LLAMA3, YARN, build, gguf_names, gguf_settings, save_folder, save_gguf, write_gguf
from plimsoll_runtime.models.weights.checkpoint import CheckpointError, open_checkpoint

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
OTHER_FILES = ["model.bin", "model.pt", "model.pth", "model.ckpt", "model.safetensors", "absent.gguf"]
Break = Callable[[Path], object]


def edit_config(**changes: Any) -> Break:
    def apply(folder: Path) -> None:
        path = folder / "config.json"
        config = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in config.items() if value != "REMOVED"}))

    return apply


def edit_tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Break:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS)

    return apply


def edit_bytes(change: Callable[[bytes], bytes], name: str = WEIGHTS) -> Break:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def edit_header(change: Callable[[dict[str, Any]], object]) -> Break:
    def apply(data: bytes) -> bytes:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        change(header)
        raw = json.dumps(header).encode()
        return len(raw).to_bytes(8, "little") + raw + data[8 + length :]

    return edit_bytes(apply)


def rope(**settings: Any) -> Break:
    return edit_config(rope_parameters={"rope_theta": 10_000.0, **settings})


NORM = "model.norm.weight"
BROKEN_FOLDERS: dict[str, tuple[Break, str]] = {
    "unknown-architecture": (
        edit_config(model_type="mamba"),
        r"model_type mamba is not supported; supported: llama, qwen2, qwen3, gemma3 \(text\), qwen3moe",
    ),
    "mixture-not-built": (edit_config(model_type="mixtral"), "model_type mixtral is not supported"),
    "mixture-without-experts": (edit_config(model_type="qwen3_moe"), "num_experts is missing"),
    "mixture-with-dense-layers": (
        edit_config(model_type="qwen3_moe", num_experts=4, mlp_only_layers=[1]),
        r"mlp_only_layers is \[1\], which is not supported",
    ),
    "mixture-chooses-too-many": (
        edit_config(model_type="qwen3_moe", num_experts=4, num_experts_per_tok=5),
        "num_experts_per_tok is 5, not a whole number from 1 to 4",
    ),
    "mixture-experts-missing": (
        edit_config(model_type="qwen3_moe", num_experts=1, num_experts_per_tok=1, moe_intermediate_size=96),
        "these tensors are missing: .*mlp.experts.0.gate_proj.weight",
    ),
    "remote-code": (edit_config(auto_map={"AutoModel": "model.Mine"}), "auto_map is .* not supported"),
    "quantized-safetensors": (edit_config(quantization_config={"bits": 4}), "quantization_config is"),
    "B89-unknown-rope-type": (
        rope(rope_type="dynamic", factor=2.0),
        "rope_parameters.rope_type dynamic is not supported",
    ),
    "B89-unknown-old-rope-type": (
        edit_config(rope_scaling={"type": "longrope", "factor": 2.0}),
        "rope_scaling.rope_type longrope is not supported",
    ),
    "B89-rope-factor-missing": (rope(rope_type="linear"), "rope_parameters.factor is missing"),
    "B89-partial-rope": (rope(partial_rotary_factor=0.5), "rope_parameters.partial_rotary_factor is 0.5"),
    "attention-bias": (edit_config(attention_bias=True), "attention_bias is True"),
    "activation": (edit_config(hidden_act="gelu"), "hidden_act is 'gelu'"),
    "sliding-layers": (edit_config(layer_types=["sliding_attention"] * 3), "layer_types has layers other than"),
    "size-missing": (edit_config(hidden_size="REMOVED"), "hidden_size is missing"),
    "size-a-string": (edit_config(hidden_size="64"), "hidden_size is '64', not a whole number"),
    "size-true": (edit_config(num_hidden_layers=True), "num_hidden_layers is True"),
    "size-negative": (edit_config(vocab_size=-1), "vocab_size is -1"),
    "layers-beyond-reason": (edit_config(num_hidden_layers=2**31), "num_hidden_layers is 2147483648"),
    "epsilon-nan": (edit_config(rms_norm_eps=float("nan")), "rms_norm_eps is nan"),
    "config-not-json": (edit_bytes(lambda data: data[:20], "config.json"), "config.json: not valid JSON"),
    "config-a-list": (edit_bytes(lambda data: b"[]", "config.json"), "config.json: not a JSON object"),
    "config-missing": (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
    "tensor-missing": (edit_tensors(lambda tensors: tensors.pop(NORM)), "these tensors are missing: model.norm.weight"),
    "B88-untied-output-missing": (
        edit_tensors(lambda tensors: tensors.pop("lm_head.weight")),
        "these tensors are missing: lm_head.weight",
    ),
    "tensor-unexpected": (
        edit_tensors(lambda tensors: tensors.update({"model.extra": torch.ones(2)})),
        "not expected in this architecture: model.extra",
    ),
    "tensor-wrongly-shaped": (
        edit_tensors(lambda tensors: tensors.update({NORM: torch.ones(65)})),
        r"tensor model.norm.weight has shape \[65\], expected \[64\]",
    ),
    "tensor-transposed": (
        edit_tensors(lambda tensors: tensors.update({"lm_head.weight": tensors["lm_head.weight"].t().contiguous()})),
        r"tensor lm_head.weight has shape \[64, 128\], expected \[128, 64\]",
    ),
    "tensor-of-integers": (
        edit_tensors(lambda tensors: tensors.update({NORM: torch.ones(64, dtype=torch.int8)})),
        "tensor model.norm.weight has dtype I8",
    ),
    "truncated-tensor": (edit_bytes(lambda data: data[:-4]), "tensor .* ends at byte .*: cut off"),
    "B94-cut-in-half": (edit_bytes(lambda data: data[: len(data) // 2]), "tensor .* ends at byte .*: cut off"),
    "header-length-absurd": (edit_bytes(lambda data: b"\xff" * 8 + data[8:]), "header length 18,446"),
    "header-cut-off": (edit_bytes(lambda data: data[:100]), "the header length .* does not fit a file of 100 bytes"),
    "empty-file": (edit_bytes(lambda data: b""), "does not fit a file of 0 bytes"),
    "header-not-json": (edit_bytes(lambda data: data[:8] + b"<" + data[9:]), "model.safetensors: not valid JSON"),
    "header-offsets-negative": (
        edit_header(lambda header: header[NORM].update(data_offsets=[-256, 0])),
        "tensor model.norm.weight has the impossible data_offsets",
    ),
    "header-offsets-disagree": (
        edit_header(lambda header: header[NORM].update(data_offsets=[0, 8])),
        r"tensor model.norm.weight of shape \[64\] has data_offsets \[0, 8\]: the sizes differ",
    ),
    "header-shape-overflows": (
        edit_header(lambda header: header[NORM].update(shape=[2**40, 2**40])),
        "tensor model.norm.weight has the impossible shape",
    ),
    "pickle-only": (
        lambda folder: (folder / WEIGHTS).rename(folder / "pytorch_model.bin"),
        "pytorch_model.bin is a pickle file, which can run code and is never loaded",
    ),
    "no-weights": (lambda folder: (folder / WEIGHTS).unlink(), "neither model.safetensors nor"),
}


@pytest.mark.parametrize("name", BROKEN_FOLDERS)
def test_a_folder_is_refused_naming_file_and_field(name: str, tmp_path: Path) -> None:
    damage, message = BROKEN_FOLDERS[name]
    save_folder(build("llama"), tmp_path)
    open_checkpoint(tmp_path)
    damage(tmp_path)
    with pytest.raises(CheckpointError, match=message) as refusal:
        open_checkpoint(tmp_path)
    assert str(tmp_path) in str(refusal.value)


# B94: the server started with uninitialized weights after an interrupted download.
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(lambda shard: shard.unlink(), "these files are missing: model-00002", id="B94-shard-missing"),
        pytest.param(
            lambda shard: shard.rename(shard.with_name(shard.name + ".incomplete")),
            "these files are missing: model-00002",
            id="B94-shard-incomplete",
        ),
        pytest.param(lambda shard: shard.write_bytes(shard.read_bytes()[:-1]), "cut off", id="B94-shard-cut-off"),
        pytest.param(lambda shard: save_file({"a": torch.ones(1)}, shard), "missing, though", id="B94-shard-foreign"),
        pytest.param(
            lambda shard: (shard.parent / "model.safetensors.index.json").unlink(),
            "index.json is missing",
            id="no-index",
        ),
        pytest.param(
            lambda shard: (shard.parent / INDEX).write_text('{"weight_map": {"a": "../a"}}'),
            "not a safetensors file of this folder",
            id="index-outside",
        ),
    ],
)
def test_an_incomplete_download_is_refused(damage: Break, message: str, tmp_path: Path) -> None:
    save_folder(build("llama"), tmp_path, max_shard_size="100KB")
    damage(next(tmp_path.glob("model-00002-of-*.safetensors")))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "name", ["model.bin", "model.pt", "model.pth", "model.ckpt", "model.safetensors", "absent.gguf"]
)
def test_other_files_are_refused(name: str, tmp_path: Path) -> None:
    if name != "absent.gguf":
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(CheckpointError, match=name):
        open_checkpoint(tmp_path / name)


BROKEN_KEYS: dict[str, tuple[dict[str, Any], str]] = {
    "mixture-model": ({"expert_count": 8}, "llama.expert_count is 8, which is not supported"),
    "B89-unknown-scaling": (
        {"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0},
        "rope.scaling.type longrope is",
    ),
    "B89-factor-missing": ({"rope.scaling.type": "linear"}, "llama.rope.scaling.factor is missing"),
    "rotary-part": ({"rope.dimension_count": 16}, "llama.rope.dimension_count is 16"),
    "value-length": ({"attention.value_length": 16}, "llama.attention.value_length is 16"),
    "size-wrong-type": ({"block_count": "3"}, "llama.block_count is '3', not a whole number"),
    "layers-beyond-reason": ({"block_count": 2**31}, "llama.block_count is 2147483648"),
    "more-layers-than-tensors": ({"block_count": 4}, "these tensors are missing: blk.3.attn_norm.weight"),
    "fewer-layers-than-tensors": ({"block_count": 2}, "not expected in this architecture: blk.2.attn_k.weight"),
    "sliding-window": ({"attention.sliding_window": 16}, "llama.attention.sliding_window is 16"),
    "wrong-width": ({"feed_forward_length": 95}, r"has shape \[96, 64\], expected \[95, 64\]"),
}


@pytest.mark.parametrize("name", BROKEN_KEYS)
def test_gguf_keys_are_refused_by_name(name: str, tmp_path: Path) -> None:
    changes, message = BROKEN_KEYS[name]
    model = build("llama")
    tensors = {ours: ("F32", model.get_parameter(name).detach().numpy()) for name, ours in gguf_names(model).items()}
    path = write_gguf(tmp_path / "model.gguf", "llama", gguf_settings(model) | changes, tensors)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(path)


@pytest.mark.parametrize("missing", ["token_embd.weight", "blk.1.ffn_down.weight"])
def test_a_missing_gguf_tensor_is_named(missing: str, tmp_path: Path) -> None:
    model = build("llama")
    tensors = {ours: ("F32", model.get_parameter(name).detach().numpy()) for name, ours in gguf_names(model).items()}
    del tensors[missing]
    path = write_gguf(tmp_path / "model.gguf", "llama", gguf_settings(model), tensors)
    with pytest.raises(CheckpointError, match=f"these tensors are missing: {missing}"):
        open_checkpoint(path)


# B89: the default context length did not honour the scaled maximum.
@pytest.mark.parametrize(
    ("family", "settings", "window"),
    [
        pytest.param("llama", {}, 512, id="plain"),
        pytest.param("llama_linear", {}, 2048, id="B89-linear"),
        pytest.param("llama_yarn", {"max_position_embeddings": 64}, 256, id="B89-yarn-original"),
        pytest.param("llama_yarn", {"max_position_embeddings": 256}, 256, id="B89-yarn-scaled"),
        pytest.param("llama_llama3", {}, 512, id="B89-llama3"),
        pytest.param("gemma3", {}, 512, id="gemma3"),
    ],
)
def test_context_window_honours_scaling(family: str, settings: dict[str, Any], window: int, tmp_path: Path) -> None:
    assert open_checkpoint(save_folder(build(family, **settings), tmp_path)).architecture.context_window == window


# B89: the key was once called `type`, and stood under `rope_scaling` with the base beside it.
@pytest.mark.parametrize("scaling", [LLAMA3, YARN], ids=["B89-llama3", "B89-yarn"])
def test_old_and_new_rope_keys_mean_the_same(scaling: dict[str, Any], tmp_path: Path) -> None:
    save_folder(build("llama", rope_parameters=scaling), tmp_path)
    new = open_checkpoint(tmp_path).architecture
    old = {key: value for key, value in scaling.items() if key not in ("rope_type", "rope_theta")}
    edit_config(rope_parameters="REMOVED", rope_theta=10_000.0, rope_scaling={"type": scaling["rope_type"], **old})(
        tmp_path
    )
    assert open_checkpoint(tmp_path).architecture == new


def test_old_gemma_keys_mean_the_same(tmp_path: Path) -> None:
    save_folder(build("gemma3"), tmp_path)
    new = open_checkpoint(tmp_path).architecture
    edit_config(
        rope_parameters="REMOVED", layer_types="REMOVED", _sliding_window_pattern="REMOVED",
        rope_theta=1_000_000.0, rope_local_base_freq=10_000.0, sliding_window_pattern=6,
    )(tmp_path)  # fmt: skip
    assert open_checkpoint(tmp_path).architecture == new


def test_end_tokens_are_the_union_of_all_that_are_named(tmp_path: Path) -> None:  # B91
    folder = save_folder(build("llama"), tmp_path)
    (folder / "generation_config.json").write_text(
        '{"eos_token_id": 7, "temperature": 0.6, "top_k": 20, "max_length": 9}'
    )
    checkpoint = open_checkpoint(folder)
    assert checkpoint.eos_token_ids == {2, 5, 7}
    assert checkpoint.generation_defaults == {"temperature": 0.6, "top_k": 20}
    assert (checkpoint.folder, checkpoint.gguf_metadata, checkpoint.format) == (folder, None, "safetensors")


def test_end_tokens_and_sampling_of_a_gguf_file(tmp_path: Path) -> None:  # B91
    ends: dict[str, Any] = {"tokenizer.ggml.eos_token_id": 3, "tokenizer.ggml.eot_token_id": 4}
    extra = ends | {"general.sampling.top_k": 40}
    checkpoint = open_checkpoint(save_gguf(build("llama"), tmp_path / "model.gguf", **extra))
    assert checkpoint.eos_token_ids == {3, 4}
    assert checkpoint.generation_defaults == {"general.sampling.top_k": 40}
    assert checkpoint.gguf_metadata is not None
    assert (checkpoint.folder, checkpoint.format) == (None, "gguf")


def test_old_rotary_frequencies_are_ignored(tmp_path: Path) -> None:
    save_folder(build("llama"), tmp_path)
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_tensors(lambda tensors: tensors.update({name: torch.ones(16)}))(tmp_path)
    open_checkpoint(tmp_path)
