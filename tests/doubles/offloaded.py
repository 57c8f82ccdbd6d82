"""A tiny mixture whose experts lie in a pack, with a cache of chosen size over it."""

from pathlib import Path

import torch

from plimsoll_runtime.kernels.native_library import NativeKernels
from plimsoll_runtime.models.decoder import Decoder, load_decoder
from plimsoll_runtime.models.experts.cache import ExpertCache, LayerExperts
from plimsoll_runtime.models.experts.layout import ExpertLayout, lay_out_experts
from plimsoll_runtime.models.experts.pack import ensure_pack
from plimsoll_runtime.models.weights.checkpoint import Checkpoint, open_checkpoint

CPU = torch.device("cpu")


def no_progress(done_bytes: int, all_bytes: int) -> None:
    """Nobody looks."""


def opened(
    path: Path, native: NativeKernels | None = None, dtype: torch.dtype = torch.float32
) -> tuple[Checkpoint, ExpertLayout]:
    checkpoint = open_checkpoint(path)
    return checkpoint, lay_out_experts(checkpoint, dtype, native)


def load_offloaded(
    path: Path, folder: Path, num_slots: int, native: NativeKernels | None = None, dtype: torch.dtype = torch.float32
) -> tuple[Decoder, ExpertCache]:
    """The decoder, and the cache that its experts go through; they are packed into `folder` where they are not yet."""
    checkpoint, layout = opened(path, native, dtype)
    cache = ExpertCache(ensure_pack(folder, checkpoint, layout, no_progress), layout, num_slots)
    decoder = load_decoder(
        checkpoint, CPU, dtype, no_progress, native, experts=lambda layer: LayerExperts(cache, layer)
    )
    return decoder, cache
