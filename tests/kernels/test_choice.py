"""What computes is decided in one place, and told with its reason."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernels.triton_device import DEVICE
from plimsoll_runtime.kernels import choice as choice_module
from plimsoll_runtime.kernels import triton_check
from plimsoll_runtime.kernels.choice import UNPROVED, StepShape, choose_for_cuda, choose_for_processor
from plimsoll_runtime.kernels.native_library import GENERIC, open_native
from plimsoll_runtime.kernels.triton_product import Routing

SHAPE = StepShape(num_heads=4, num_kv_heads=2, head_dim=64, page_size=16, window=None, dtype=torch.float32,
                  storages=frozenset({"Q4_0"}))  # fmt: skip
CUDA = torch.device("cuda")


def test_the_choice_is_told(native_library: tuple[str, ...]) -> None:
    if native_library[-1] == GENERIC:
        pytest.skip("cpu_feature: avx2")
    choice = choose_for_processor(2, {"Q4_1", "F32"})
    native = {"name": "native", "instructions": native_library[-1], "threads": 2}
    assert choice.facts(whole_layers=True) == {**native, "computes": "layers"}
    assert choice.facts(whole_layers=False) == {**native, "computes": "quantized products, torch the rest"}


def test_torch_multiplies_what_is_not_quantized() -> None:
    choice = choose_for_processor(2, {"F32", "BF16"})
    reason = "the layers' weights are BF16, F32, which torch multiplies"
    assert choice.facts(whole_layers=False) == {"name": "torch", "reason": reason}


def test_generic_kernels_are_never_chosen_only_named(
    native_library: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice_module, "usable_instructions", lambda: (GENERIC,))
    choice = choose_for_processor(2, {"Q4_1"})
    assert (choice.native, choice.reason) == (None, "without AVX2 the native kernels are slower than torch")
    assert open_native(1, GENERIC).instructions == GENERIC


def test_a_cuda_device_takes_tritons_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself runs here as it would there, by the interpreter where there is no device."""
    checked: list[StepShape] = []
    find_fault = triton_check.find_fault

    def find_fault_here(device: torch.device, shape: StepShape) -> str | None:
        assert device == CUDA
        checked.append(shape)
        return find_fault(DEVICE, shape)

    monkeypatch.setattr(triton_check, "find_fault", find_fault_here)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A Card")
    choice = choose_for_cuda(CUDA, SHAPE)
    assert choice.triton
    assert checked == [SHAPE]
    assert choice.facts(whole_layers=False) == {
        "name": "triton",
        "computes": "attention, quantized products and mixtures, torch the rest",
        "device": "A Card",
        "proof": UNPROVED,
    }


def test_without_triton_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice_module, "find_spec", lambda name: None)
    choice = choose_for_cuda(CUDA, SHAPE)
    assert not choice.triton
    reason = "the model is on cuda, and triton is not installed: pip install plimsoll[gpu]"
    assert choice.facts(whole_layers=False) == {"name": "torch", "reason": reason}


def wrong_result(*arguments: Any) -> torch.Tensor:
    """Leaves an output as it is, or gives zeros; the third argument of a product by experts has their number."""
    pairs = arguments[-1].num_pairs if isinstance(arguments[-1], Routing) else arguments[-1].shape[0]
    return torch.zeros(pairs, 48, device=DEVICE)


def no_compiler(*arguments: object) -> None:
    raise RuntimeError("ptxas\n  went away")


@pytest.mark.parametrize(
    "name", ["attend_tokens", "attend_chunks", "store_rows", "project_pairs", "TritonMatrix.project"]
)
@pytest.mark.parametrize(
    ("broken", "told"), [(wrong_result, "off by "), (no_compiler, "RuntimeError: ptxas went away")]
)
def test_kernels_that_fail_on_the_device_compute_nothing(
    name: str, broken: Callable[..., Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"plimsoll_runtime.kernels.triton_check.{name}", broken)
    fault = triton_check.find_fault(DEVICE, SHAPE)
    assert fault is not None
    assert told in fault


def test_a_processor_never_imports_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("plimsoll_runtime.kernels.triton_")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton", None)
    choose_for_processor(1, {"F32"})
    assert not [name for name in sys.modules if name.startswith("plimsoll_runtime.kernels.triton_")]
