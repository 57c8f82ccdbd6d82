"""`plimsoll pack`: a mixture's experts into the file that `plimsoll serve --offload` reads them from.

Owns the command's arguments and what it says. The server packs by itself when it finds no pack; this command does it
before, checks every byte of a pack that is there, and writes again what is damaged. Exit codes: 0 done, 1 could not.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import get_args

from plimsoll_runtime.contract.config import Dtype, RuntimeConfig
from plimsoll_runtime.contract.last_words import StartError
from plimsoll_runtime.contract.model_source import ModelSourceError
from plimsoll_runtime.loading import open_model, show_progress
from plimsoll_runtime.models.experts.folder import provide_pack
from plimsoll_runtime.models.experts.pack import PackError
from plimsoll_runtime.models.weights.errors import CheckpointError


def main(arguments: Sequence[str]) -> int:
    """Packs, or checks what is packed; returns the exit code."""
    told = _parser().parse_args(arguments)
    started = time.monotonic()
    try:
        opened = open_model(RuntimeConfig(model=told.model, dtype=told.dtype, device="cpu"))
        layout = opened.expert_layout()
        if layout is None:
            raise StartError(f"{opened.path}: the model has no experts, so there is nothing to pack")
        progress = show_progress("plimsoll pack", "packing experts")
        folder, pack = provide_pack(opened.path, opened.checkpoint, layout, progress, checks_all=True)
        pack.close()
    except (StartError, ModelSourceError, CheckpointError, PackError) as error:
        print(f"plimsoll pack: {error}", file=sys.stderr)
        return 1
    print(
        f"{folder}: {layout.count:,} experts, {layout.num_bytes:,} bytes, all checked, in "
        f"{time.monotonic() - started:.1f} s"
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="plimsoll pack", description=__doc__.split("\n\n")[0])
    parser.add_argument("model", help="what plimsoll serve takes as --model")
    parser.add_argument(
        "--dtype", choices=get_args(Dtype), default="auto", help="as it will be served, since each has its own pack"
    )
    return parser
