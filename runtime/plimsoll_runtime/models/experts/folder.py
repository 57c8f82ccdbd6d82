"""Where the pack of a model's experts lies: beside the model, or in this user's cache where that cannot be written.

Owns the two places and the choice between them. In: the model's path and a layout. Out: an open pack, written first
where there is none. Each set of forms has a folder of its own, so that servers of two types of activations do not take
each other's pack for a stale one.
"""

import hashlib
import os
from pathlib import Path

from plimsoll_runtime.models.experts.layout import ExpertLayout
from plimsoll_runtime.models.experts.pack import ExpertPack, Progress, ensure_pack, open_pack, place_experts
from plimsoll_runtime.models.weights.checkpoint import Checkpoint


def provide_pack(
    model: Path, checkpoint: Checkpoint, layout: ExpertLayout, progress: Progress, *, checks_all: bool = False
) -> tuple[Path, ExpertPack]:
    """The folder and its pack: the first place that has it, else the first that can be written. Raises PackError."""
    folders = pack_folders(model, layout)
    for folder in folders:
        found = None if checks_all else open_pack(folder, layout, place_experts(layout))
        if found is not None:
            return folder, found
    folder = next(filter(_can_write, folders), folders[-1])
    return folder, ensure_pack(folder, checkpoint, layout, progress, checks_all=checks_all)


def pack_folders(model: Path, layout: ExpertLayout) -> tuple[Path, Path]:
    """Beside the model, and in the cache."""
    model = model.resolve()
    forms = _digest("\n".join(form.text for form in layout.forms))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "plimsoll" / "experts"
    return model.with_name(f"{model.name}.experts") / forms, cache / f"{model.name}-{_digest(str(model))}" / forms


def _can_write(folder: Path) -> bool:
    """Whether the folder, or the first of its parents that is there, can be written."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return there.is_dir() and os.access(there, os.W_OK)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
