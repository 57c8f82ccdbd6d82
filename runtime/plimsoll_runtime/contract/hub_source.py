"""Models on a Hugging Face hub: the grammar `hf://org/name[/FILE.gguf][@revision]`.

Owns that grammar and where the model lies in a folder that `plimsoll fetch` has filled. Without a file the source is a
folder of safetensors; a GGUF model is named with its file, since repositories hold many of them. It opens nothing.
"""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

HUB_SCHEME: Final = "hf"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_REVISION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]{0,199}")
_FORM: Final = "write hf://org/name, hf://org/name/FILE.gguf, or either with @revision"


class HubSourceError(ValueError):
    """The text is not a source on a hub; one sentence."""


@dataclass(frozen=True, slots=True)
class HubSource:
    """`file`: the GGUF file below the repository's root, None for a folder of safetensors. `revision`: a branch, tag or
    commit, None for the default branch."""

    text: str
    repository: str
    file: PurePosixPath | None
    revision: str | None

    def model_path(self, folder: PurePosixPath) -> PurePosixPath:
        """What the server opens, in the folder that was fetched into."""
        return folder if self.file is None else folder / self.file


def parse_hub_source(text: str) -> HubSource:
    """Raises HubSourceError."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme.lower() != HUB_SCHEME:
        raise HubSourceError(f"model source {text}: not on a hub; {_FORM}")
    place, at, revision = rest.partition("@")
    owner, _, below = place.partition("/")
    name, _, file = below.partition("/")
    if not (_NAME.fullmatch(owner) and _NAME.fullmatch(name)):
        raise HubSourceError(f"model source {text}: no repository of the form org/name; {_FORM}")
    if at and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise HubSourceError(f"model source {text}: {revision!r} is not a revision; {_FORM}")
    return HubSource(text, f"{owner}/{name}", _file(text, file), revision or None)


def _file(text: str, file: str) -> PurePosixPath | None:
    path = PurePosixPath(file)
    if not file:
        return None
    if path.suffix.lower() != ".gguf" or path.is_absolute() or ".." in path.parts or not file.isprintable():
        raise HubSourceError(f"model source {text}: {file!r} is not a GGUF file below the repository; {_FORM}")
    return path
