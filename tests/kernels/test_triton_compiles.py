"""What the interpreter cannot see: that the kernels compile to machine code, and fit a small device's fast memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL_DEVICE_BYTES = 99 * 1024
"""What one program may take on cards of compute capability 8.6 and 8.9."""


@pytest.mark.parametrize(
    ("capability", "case", "kernels"),
    [
        ("86", "attention-128-float32", {"_store_kernel", "_token_kernel", "_join_kernel", "_chunk_kernel"}),
        ("86", "products", {"_product_kernel"}),
        ("90", "attention-64-bfloat16", {"_store_kernel", "_token_kernel", "_join_kernel", "_chunk_kernel"}),
    ],
)
def test_every_kernel_compiles(capability: str, case: str, kernels: set[str], tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/kernels/compiled.py"), capability, case],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    memory = {name: int(size) for name, size in (line.split() for line in done.stdout.splitlines())}
    assert memory.keys() == kernels
    assert max(memory.values()) <= SMALL_DEVICE_BYTES
