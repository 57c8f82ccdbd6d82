"""Where Triton's kernels are tested: on a CUDA device, and without one by Triton's interpreter on the processor.

A kernel becomes an interpreted one when its module is imported, so a test imports this module before any with kernels.
"""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
IS_INTERPRETED = DEVICE.type == "cpu"
