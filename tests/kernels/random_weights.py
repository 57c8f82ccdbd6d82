"""Random weights in every storage type, as raw bytes whose scales are numbers of ordinary size."""

import numpy as np
import torch

from plimsoll_runtime.kernels.stored import STORAGES, StoredTensor

HALF_OFFSETS = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip
"""Where the float16 scales and minimums of a group stand; every other byte may be anything."""

SCALE_SIZES = {"Q4_K": 0.0003, "Q5_K": 0.0003, "Q6_K": 0.0003, "Q8_0": 0.001}


def random_bytes(name: str, num_rows: int, num_columns: int, seed: int) -> np.ndarray:
    """`[rows, row_bytes]` uint8."""
    generator = np.random.default_rng(seed)
    storage = STORAGES[name]
    num_groups = num_rows * num_columns // storage.group_weights
    if name not in HALF_OFFSETS:
        values = torch.from_numpy(generator.normal(size=(num_rows, num_columns)).astype(np.float32)) * 0.1
        dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[name]
        return values.to(dtype).view(torch.uint8).numpy()
    groups = generator.integers(0, 256, (num_groups, storage.group_bytes), dtype=np.uint8)
    for offset in HALF_OFFSETS[name]:
        halves = generator.normal(size=(num_groups, 1)) * SCALE_SIZES.get(name, 0.01)
        groups[:, offset : offset + 2] = halves.astype(np.float16).view(np.uint8)
    return groups.reshape(num_rows, -1)


def random_weights(name: str, num_rows: int, num_columns: int, seed: int = 0) -> StoredTensor:
    data = torch.from_numpy(random_bytes(name, num_rows, num_columns, seed))
    return StoredTensor(STORAGES[name], (num_rows, num_columns), data)
