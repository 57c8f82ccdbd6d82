"""What this machine can do at the most, measured: bytes read per second, and multiplications per second.

Owns the two measurements, what a token costs in bytes and operations, and the share that a measured rate reaches. The
weights of a small model fit into a large last-level cache, so bandwidth is measured twice: over as many bytes as the
weights have, and over a gibibyte, which no cache holds.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from cpu_figures import AT_4000
from plimsoll_runtime.models.architecture import Architecture
from plimsoll_runtime.models.native_decoder import NATIVE_CACHE_DTYPE, native_head_elements
from plimsoll_runtime.models.weights.checkpoint import open_checkpoint

LARGE_BYTES = 2**30
DEEP_TOKENS = 4000
_REPEATS = 7


def measure_roofline(model: Path, num_threads: int) -> dict[str, float]:
    """Bandwidths in GB/s, arithmetic in GFLOP/s (a multiplication and its addition are two), costs of one token."""
    torch.set_num_threads(num_threads)
    checkpoint = open_checkpoint(model)
    shape = checkpoint.architecture
    return {
        "weight_megabytes": checkpoint.weight_bytes / 1e6,
        "kv_kilobytes_per_token": _kv_bytes_per_token(shape) / 1e3,
        "decode_megaflops_per_token": 2 * (_linear_weights(shape) + shape.vocab_size * shape.hidden_size) / 1e6,
        "prefill_megaflops_per_token": 2 * _linear_weights(shape) / 1e6,
        "weights_gigabytes_per_second": _bandwidth(checkpoint.weight_bytes) / 1e9,
        "memory_gigabytes_per_second": _bandwidth(LARGE_BYTES) / 1e9,
        "float32_gigaflops": _multiplication_rate(512, shape.hidden_size, shape.feed_forward_size) / 1e9,
    }


def shares(roofline: Mapping[str, float], rates: Mapping[str, float]) -> dict[str, float]:
    """`rates` in tokens/s by figure. What each reaches of the machine, in percent."""
    reached = {}
    if "single" in rates:
        moved = rates["single"] * roofline["weight_megabytes"] / 1e3
        reached["single stream: weights read, of cached bandwidth"] = moved / roofline["weights_gigabytes_per_second"]
        reached["single stream: weights read, of memory bandwidth"] = moved / roofline["memory_gigabytes_per_second"]
    if AT_4000 in rates:
        megabytes = roofline["weight_megabytes"] + DEEP_TOKENS * roofline["kv_kilobytes_per_token"] / 1e3
        moved = rates[AT_4000] * megabytes / 1e3
        reached["4,000 tokens: read, of memory bandwidth"] = moved / roofline["memory_gigabytes_per_second"]
    for figure, name in (("streams-8", "8 streams"), ("streams-16", "16 streams")):
        if figure in rates:
            done = rates[figure] * roofline["decode_megaflops_per_token"] / 1e3
            reached[f"{name}: operations, of the float32 rate"] = done / roofline["float32_gigaflops"]
    if "prefill" in rates:
        done = rates["prefill"] * roofline["prefill_megaflops_per_token"] / 1e3
        reached["prefill: operations, of the float32 rate"] = done / roofline["float32_gigaflops"]
    return {name: 100 * share for name, share in reached.items()}


def _kv_bytes_per_token(shape: Architecture) -> int:
    """Where the native kernels compute; torch alone keeps four bytes for each number."""
    head_bytes = native_head_elements(shape.head_dim) * NATIVE_CACHE_DTYPE.itemsize
    return 2 * shape.num_layers * shape.num_kv_heads * head_bytes


def _linear_weights(shape: Architecture) -> int:
    """Multiplied with every token, the head not among them: prefill needs that for one token only."""
    heads = shape.num_heads + 2 * shape.num_kv_heads
    attention = shape.hidden_size * heads * shape.head_dim + shape.num_heads * shape.head_dim * shape.hidden_size
    return shape.num_layers * (attention + 3 * shape.hidden_size * shape.feed_forward_size)


def _bandwidth(num_bytes: int) -> float:
    values = torch.ones(num_bytes // 4)
    return num_bytes / _fastest(values.sum)


def _multiplication_rate(rows: int, depth: int, columns: int) -> float:
    left, right = torch.randn(rows, depth), torch.randn(depth, columns)
    return 2 * rows * depth * columns / _fastest(lambda: left @ right)


def _fastest(work: Callable[[], object]) -> float:
    """Seconds of the fastest of some runs, after one that does not count."""
    work()
    seconds = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
