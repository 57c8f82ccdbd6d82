"""The meaning of the stored bytes equals the `gguf` library's, bit for bit; the small operations equal torch's own."""

import gguf
import numpy as np
import pytest
import torch
from torch.nn import functional

from kernels.random_weights import random_weights
from plimsoll_runtime.kernels import reference
from plimsoll_runtime.kernels.stored import STORAGES, join_rows, store_floats, stored_bytes


@pytest.mark.parametrize("name", STORAGES)
def test_dequantized_bits_equal_the_gguf_library(name: str) -> None:
    stored = random_weights(name, 7, 512)
    expected = gguf.dequantize(stored.data_RB.numpy(), gguf.GGMLQuantizationType[name])
    ours = reference.dequantize(stored).numpy()
    np.testing.assert_array_equal(ours.view(np.uint32), expected.reshape(7, 512).view(np.uint32))


@pytest.mark.parametrize("name", STORAGES)
def test_sizes_equal_the_gguf_library(name: str) -> None:
    weights, num_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    assert (STORAGES[name].group_weights, STORAGES[name].group_bytes) == (weights, num_bytes)
    assert stored_bytes(STORAGES[name], (3, 512)) == 3 * 512 // weights * num_bytes


@pytest.mark.parametrize("name", STORAGES)
def test_rows_are_taken_sliced_and_joined_without_decoding(name: str) -> None:
    stored = random_weights(name, 6, 256)
    whole = reference.dequantize(stored)
    order = torch.tensor([5, 0, 3])
    assert torch.equal(reference.dequantize(stored.take_rows(order)), whole[order])
    assert torch.equal(reference.dequantize(stored.slice_rows(2, 5)), whole[2:5])
    assert torch.equal(reference.dequantize(join_rows([stored, stored])), torch.cat([whole, whole]))


def test_a_vector_keeps_its_shape() -> None:
    values = torch.randn(8)
    assert torch.equal(reference.dequantize(store_floats(values)), values)


def test_norm_equals_torch() -> None:
    values, weight = torch.randn(5, 64), torch.randn(64)
    torch.testing.assert_close(
        reference.rms_norm(values, weight, 1e-6), functional.rms_norm(values, (64,), weight, 1e-6)
    )


@pytest.mark.parametrize("window", [None, 1, 4, 100])
def test_attention_equals_torch_with_a_mask(window: int | None) -> None:
    query, keys, values = torch.randn(3, 4, 8), torch.randn(9, 2, 8), torch.randn(9, 2, 8)
    mask = torch.tensor([[s <= 6 + t and (window is None or s > 6 + t - window) for s in range(9)] for t in range(3)])
    expected = functional.scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        attn_mask=mask,
        scale=0.3,
        enable_gqa=True,
    )[0].transpose(0, 1)
    torch.testing.assert_close(reference.attend(query, keys, values, 0.3, window), expected)
