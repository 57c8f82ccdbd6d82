"""Logits of tiny random models equal transformers' in float32, from safetensors and from GGUF, at every position.

Positions go beyond the original maximum of a scaled rope and beyond the sliding window.
"""

from pathlib import Path

import pytest
import torch

from models.running import all_logits, load
from models.tiny_models import DELTA_FAMILIES, FAMILIES, build, logits_of, save_as_seeing, save_folder, save_gguf
from plimsoll_runtime.models.weights.checkpoint import open_checkpoint

TOKEN_IDS = [(7 * index * index + 3 * index) % 128 for index in range(100)]
TOLERANCE = 1e-4
QUANTIZED = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
K_QUANTS = ["Q4_K", "Q5_K", "Q6_K"]
K_SIZES = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "num_hidden_layers": 1}


def assert_equal(path: Path, model: object) -> None:
    ours, theirs = all_logits(load(path), TOKEN_IDS), logits_of(model, TOKEN_IDS)
    assert theirs.std() > 0.05, "logits that are all alike prove nothing"
    torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)


# B89: rope scaling was read and not computed, which shows only beyond the original maximum (64 here).
@pytest.mark.parametrize("family", [*FAMILIES, *DELTA_FAMILIES])
def test_safetensors_give_the_logits_of_transformers(family: str, tmp_path: Path) -> None:
    model = build(family)
    assert_equal(save_folder(model, tmp_path), model)


# B88: a tied model has no output tensor, and loading failed; B89: rope_freqs.weight was an unexpected tensor.
@pytest.mark.parametrize("family", [*FAMILIES, *DELTA_FAMILIES])
def test_gguf_gives_the_logits_of_transformers(family: str, tmp_path: Path) -> None:
    model = build(family)
    assert_equal(save_gguf(model, tmp_path / "model.gguf"), model)


@pytest.mark.parametrize("family", ["llama_tied", "gemma3", "qwen3_moe"])
@pytest.mark.parametrize("storage", QUANTIZED)
def test_quantized_gguf_gives_the_logits_of_its_dequantized_weights(family: str, storage: str, tmp_path: Path) -> None:
    model = build(family)
    assert_equal(save_gguf(model, tmp_path / "model.gguf", storage), model)


@pytest.mark.parametrize("family", DELTA_FAMILIES)
def test_quantized_heads_that_share_in_turn_give_the_logits_of_transformers(family: str, tmp_path: Path) -> None:
    """One storage is enough for the order of rows; with others the rounding of transformers itself comes near 1e-4."""
    model = build(family)
    assert_equal(save_gguf(model, tmp_path / "model.gguf", "Q8_0"), model)


@pytest.mark.parametrize("storage", K_QUANTS)
def test_k_quants_give_the_logits_of_their_dequantized_weights(storage: str, tmp_path: Path) -> None:
    model = build("llama", **K_SIZES)
    assert_equal(save_gguf(model, tmp_path / "model.gguf", storage), model)


def test_shares_that_are_not_normalized_give_the_logits_of_transformers(tmp_path: Path) -> None:
    model = build("qwen3_moe", norm_topk_prob=False)
    assert_equal(save_folder(model, tmp_path), model)


def test_states_forget_by_what_the_model_says(tmp_path: Path) -> None:
    """Strong and weak decays, and as many value as key heads; every layer attends but the last."""
    kinds = ["full_attention", "full_attention", "full_attention", "linear_attention"]
    model = build("qwen3_5", linear_num_key_heads=4, layer_types=kinds, tie_word_embeddings=True)
    assert_equal(save_folder(model, tmp_path), model)


@pytest.mark.parametrize("family", DELTA_FAMILIES)
def test_the_text_of_a_model_that_sees_gives_the_logits_of_transformers(family: str, tmp_path: Path) -> None:
    """As the released files are: the text under `language_model`, experts fused, what sees and what drafts beside."""
    model = build(family)
    assert_equal(save_as_seeing(model, tmp_path), model)
    assert open_checkpoint(tmp_path).eos_token_ids == {2, 5}


# B88: the embedding was taken for the output although the file has one of its own.
@pytest.mark.parametrize("family", ["llama_tied", "gemma3"])
def test_a_tied_model_that_ships_an_output_uses_it(family: str, tmp_path: Path) -> None:
    model = build(family, tie_word_embeddings=False)
    folder = save_folder(model, tmp_path)
    config = folder / "config.json"
    text = config.read_text()
    assert '"tie_word_embeddings": false' in text
    config.write_text(text.replace('"tie_word_embeddings": false', '"tie_word_embeddings": true'))
    assert_equal(folder, model)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_half_precision_weights_stay_as_stored_and_compute_in_float32(dtype: str, tmp_path: Path) -> None:
    model = build("llama")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(getattr(torch, dtype)))
    folder = save_folder(build("llama").to(getattr(torch, dtype)), tmp_path)
    assert open_checkpoint(folder).weight_bytes == model.num_parameters() * getattr(torch, dtype).itemsize
    assert_equal(folder, model)


def test_shards_give_the_logits_of_the_whole(tmp_path: Path) -> None:
    model = build("qwen3")
    folder = save_folder(model, tmp_path, max_shard_size="60KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    assert_equal(folder, model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_activations_stay_near(dtype: torch.dtype, tmp_path: Path) -> None:
    model = build("llama_tied")
    path = save_gguf(model, tmp_path / "model.gguf", "Q8_0")
    ours, theirs = all_logits(load(path, dtype), TOKEN_IDS), logits_of(model, TOKEN_IDS)
    assert torch.nn.functional.cosine_similarity(ours, theirs, dim=-1).min() > 0.99
