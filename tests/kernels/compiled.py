"""Compiles what Triton's wrappers launch, for a device that is not here: run as a program, without the interpreter.

In: the compute capability (86, 90) and the name of a case. Every launch is compiled to machine code instead of run.
Out: a line for each kernel with its name and the bytes of fast memory that a program takes.
"""

import sys
from collections.abc import Sequence
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile  # noqa: A004
from triton.runtime.jit import JITFunction

from plimsoll_runtime.kernels.stored import FLOAT_DTYPES, STORAGES, StoredTensor, stored_bytes
from plimsoll_runtime.kernels.triton_attention import attend_chunks, attend_tokens, make_tables, store_rows
from plimsoll_runtime.kernels.triton_product import ExpertBank, TritonMatrix, project_pairs, route_pairs

NAMES = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int32: "i32", torch.int64: "i64",
    torch.uint8: "u8",
}  # fmt: skip


class Span:
    """Two tokens after three, on one page."""

    def __init__(self, num_tokens: int) -> None:
        self.start_row, self.num_tokens, self.context_tokens, self.page_table = 0, num_tokens, 3, [0]


def compile_launches(capability: int) -> None:
    """From now on a launch compiles."""

    def run(kernel: Any, *values: Any, grid: Any, warmup: bool, **options: Any) -> None:
        arguments = dict(zip(kernel.arg_names, values, strict=False)) | options
        signature = {name: signature_of(arguments[name]) for name in kernel.arg_names[: len(values)]}
        signature |= dict.fromkeys(kernel.arg_names[len(values) :], "constexpr")
        constants = {(kernel.arg_names.index(name),): options[name] for name in kernel.arg_names[len(values) :]}
        source = ASTSource(kernel, signature=signature, constexprs=constants)
        made = compile(source, target=GPUTarget("cuda", capability, 32), options={"enable_fp_fusion": True})
        assert made.asm["cubin"]
        print(kernel.__name__, made.metadata.shared, flush=True)

    JITFunction.run = run


def signature_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"*{NAMES[value.dtype]}"
    return "fp32" if isinstance(value, float) else "i32"


def attention(head_dim: int, dtype: torch.dtype) -> None:
    cache = torch.zeros(16, 2, head_dim, dtype=dtype)
    query = torch.zeros(2, 8, head_dim, dtype=dtype)
    store_rows(cache[:2], cache[:2], cache, cache, torch.arange(2))
    for num_tokens, attend in ((1, attend_tokens), (2, attend_chunks)):
        tables = make_tables([Span(num_tokens)], 16, torch.device("cpu"))
        attend(query, cache, cache, tables, 0.1, None, query)


def products(names: Sequence[str], dtype: torch.dtype) -> None:
    """One matrix of each quantized storage; of the others experts."""
    chosen = route_pairs(torch.tensor([[0, 1]] * 40), 2)
    for storage in (STORAGES[name] for name in names):
        columns = max(storage.group_weights, 64)
        data = torch.zeros(2, 64, stored_bytes(storage, (columns,)), dtype=torch.uint8)
        values = torch.zeros(40, columns, dtype=dtype)
        if storage.name in FLOAT_DTYPES:
            project_pairs(values, ExpertBank(storage, columns, data, dtype), chosen)
        else:
            TritonMatrix(StoredTensor(storage, (64, columns), data[0]), dtype).project(values)


CASES = {
    "products": lambda: products(["Q4_0", "Q4_K", "BF16"], torch.bfloat16),
    "all-products-float32": lambda: products(list(STORAGES), torch.float32),
    "all-products-bfloat16": lambda: products(list(STORAGES), torch.bfloat16),
    "attention-64-bfloat16": lambda: attention(64, torch.bfloat16),
    "attention-128-float32": lambda: attention(128, torch.float32),
    "attention-256-float32": lambda: attention(256, torch.float32),
}

if __name__ == "__main__":
    compile_launches(int(sys.argv[1]))
    CASES[sys.argv[2]]()
