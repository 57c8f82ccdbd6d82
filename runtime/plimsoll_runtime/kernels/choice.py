"""Which kernels compute the model on this machine: decided once, before any weight is read, and told to whoever asks.

Owns the choice between the native kernels (a processor), Triton's (a CUDA device) and torch alone, with its reason. In:
the device and the model's shapes. Out: a `KernelChoice`, whose `facts` go into the start log and into `GET /budget`.
dispatch.py and models/step_kernels.py act on it. Invariant: Triton's kernels, which no machine of ours has run, compute
nothing before they gave what the specification gives, at start, on the device at hand.

| device | what computes |
| --- | --- |
| processor, `--dtype auto`, quantized weights | native kernels, where the library is and AVX2 is there |
| CUDA device | Triton's kernels, where triton is installed and agrees with the specification |
| else | torch |
"""

from collections.abc import Collection
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from plimsoll_runtime.kernels.native_library import (
    GENERIC,
    NATIVE_STORAGES,
    NativeError,
    NativeKernels,
    open_native,
    usable_instructions,
)

UNPROVED = "never run on a real device by this project: checked under Triton's interpreter, and here at start"


@dataclass(frozen=True, slots=True)
class StepShape:
    """What the kernels of a step depend on."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    window: int | None
    dtype: torch.dtype
    storages: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The native kernels, or Triton's on the device of that name, or the reason why torch computes alone."""

    native: NativeKernels | None = None
    triton_device: str | None = None
    reason: str | None = None

    @property
    def triton(self) -> bool:
        return self.triton_device is not None

    def facts(self, whole_layers: bool) -> dict[str, str | int]:
        """For the start log and for `GET /budget`; `whole_layers`: not only the products of quantized weights."""
        if self.triton_device is not None:
            return {
                "name": "triton",
                "computes": "attention, quantized products and mixtures, torch the rest",
                "device": self.triton_device,
                "proof": UNPROVED,
            }
        if self.native is None:
            return {"name": "torch", "reason": str(self.reason)}
        return {
            "name": "native",
            "computes": "layers" if whole_layers else "quantized products, torch the rest",
            "instructions": self.native.instructions,
            "threads": self.native.num_threads,
        }


def choose_for_processor(num_threads: int, storages: Collection[str]) -> KernelChoice:
    """The native kernels with the best instruction set, for layers with matrices of `storages`, where that pays."""
    if NATIVE_STORAGES.isdisjoint(storages):
        return KernelChoice(reason=f"the layers' weights are {', '.join(sorted(storages))}, which torch multiplies")
    try:
        if usable_instructions()[-1] == GENERIC:
            return KernelChoice(reason="without AVX2 the native kernels are slower than torch")
        return KernelChoice(open_native(num_threads))
    except NativeError as error:
        return KernelChoice(reason=str(error))


def choose_for_cuda(device: torch.device, shape: StepShape) -> KernelChoice:
    """Compiles the kernels that such a model needs and compares them with the specification: some seconds."""
    if find_spec("triton") is None:
        return KernelChoice(reason=f"the model is on {device}, and triton is not installed: pip install plimsoll[gpu]")
    from plimsoll_runtime.kernels.triton_check import find_fault  # noqa: PLC0415 (an optional dependency)

    fault = find_fault(device, shape)
    if fault is not None:
        return KernelChoice(reason=f"Triton's kernels were left out on {device}: {fault}")
    return KernelChoice(triton_device=torch.cuda.get_device_name(device))
