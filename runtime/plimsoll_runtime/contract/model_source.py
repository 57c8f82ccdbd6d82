"""Where a model lies: the one grammar of `--model` and `spec.model.source`.

Owns the schemes. In: the text of a source. Out: a `ModelSource`, its path on this machine, and the name it is served
under when nobody gives one. Three schemes mean something in a cluster only, where the pod gets the model as a file:
`hf://` (fetched before the server starts), `pvc://` and `oci://` (mounted). It opens no model file and runs no code of
the package that holds one. A fault is a `ModelSourceError` whose text is one sentence.
"""

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from plimsoll_runtime.contract.hub_source import HubSource, HubSourceError, parse_hub_source

MODEL_FILE_SUFFIXES: Final = frozenset({".gguf"})
"""Suffixes that are no part of a model's name; the dot in a folder name such as Qwen2.5-0.5B is part of it."""

MANIFEST_PATTERN: Final = (
    r"^((?i:file):///[^/].*"
    r"|(?i:package)://[A-Za-z_][A-Za-z0-9_]*/[^/].*"
    r"|(?i:hf)://[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*(/[^/@][^@]*\.(?i:gguf))?(@[A-Za-z0-9][A-Za-z0-9._/+-]*)?"
    r"|(?i:pvc)://[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[^/].*"
    r"|(?i:oci)://[^@\s]+[:@][^/\s]+/[^/].*)$"
)
"""What a manifest may say, for the API server (RE2): the form alone, where `parse_model_source` knows the rest."""

_CLAIM: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_FORMS: Final = (
    "write file:///path, package://python_package/file, or for a cluster hf://org/name, pvc://claim/path or "
    "oci://image:tag/path"
)


class ModelSourceError(ValueError):
    """The source cannot be read as one, or nothing lies there; the text is one sentence for its reader."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A file or folder at `path`: below the folder of an installed `package`, on a `hub`, in the volume of a `claim`,
    in a container `image`, or anywhere on this machine when all of these are None."""

    text: str
    path: PurePosixPath
    package: str | None = None
    hub: HubSource | None = None
    claim: str | None = None
    image: str | None = None


def parse_model_source(text: str) -> ModelSource:
    """The source that `text` names; a text without a scheme is a path. Raises ModelSourceError."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        return _bare_path(text)
    match scheme.lower():
        case "file":
            return _file(text, rest)
        case "package":
            return _package(text, rest)
        case "hf":
            return _hub(text)
        case "pvc":
            return _claim(text, rest)
        case "oci":
            return _image(text, rest)
    raise ModelSourceError(f"model source {text}: {scheme}:// is not a scheme; {_FORMS}")


def only_in_cluster(source: ModelSource) -> str | None:
    """Why this source means nothing outside a cluster, and what to do there; None when it does."""
    name_it = "name the file or folder with file:///path"
    if source.hub is not None:
        return (
            "hf:// is fetched into the pod before the server starts, which needs a cluster; outside one run plimsoll "
            f"fetch --source={source.text} --into=FOLDER and {name_it}"
        )
    if source.claim is not None:
        return f"pvc:// names a PersistentVolumeClaim, which exists in a cluster only; outside one {name_it}"
    if source.image is not None:
        return f"oci:// is an image that a cluster mounts into the pod; outside one unpack it and {name_it}"
    return None


def has_scheme(text: str) -> bool:
    """Whether the source says what it is, as manifests must: a bare path is for the command line only."""
    return "://" in text


def resolve_model_path(source: ModelSource) -> Path:
    """The existing file or folder on this machine. Raises ModelSourceError when there is none."""
    why_not = only_in_cluster(source)
    if why_not is not None:
        raise ModelSourceError(f"model source {source.text}: {why_not}")
    path = Path(source.path) if source.package is None else _package_folder(source, source.package) / source.path
    if not path.exists():
        raise ModelSourceError(f"model source {source.text}: there is no file or folder {path}")
    return path


def default_served_name(source: ModelSource) -> str:
    """The last part of the source, without its suffix."""
    path = Path(source.path).resolve() if source.path.name in ("", "..") else source.path
    return path.stem if path.suffix.lower() in MODEL_FILE_SUFFIXES else path.name


def _bare_path(text: str) -> ModelSource:
    if not text or "\0" in text:
        raise ModelSourceError(f"model source {text!r}: not a path; {_FORMS}")
    return ModelSource(text, PurePosixPath(text))


def _file(text: str, rest: str) -> ModelSource:
    path = PurePosixPath(rest)
    if not path.is_absolute() or path == PurePosixPath("/"):
        raise ModelSourceError(f"model source {text}: file:// needs a path from the root, as in file:///models/name")
    _refuse_climbing(text, path)
    return ModelSource(text, path)


def _package(text: str, rest: str) -> ModelSource:
    package, _, file = rest.partition("/")
    path = PurePosixPath(file)
    if not package.isidentifier() or not file or path.is_absolute():
        raise ModelSourceError(
            f"model source {text}: expected package://python_package/file, with the name that the package is "
            "imported by and a path below its folder"
        )
    _refuse_climbing(text, path)
    return ModelSource(text, path, package)


def _hub(text: str) -> ModelSource:
    try:
        hub = parse_hub_source(text)
    except HubSourceError as error:
        raise ModelSourceError(str(error)) from None
    return ModelSource(text, hub.file or PurePosixPath(hub.repository.partition("/")[2]), hub=hub)


def _claim(text: str, rest: str) -> ModelSource:
    claim, _, file = rest.partition("/")
    path = PurePosixPath(file)
    if not _CLAIM.fullmatch(claim) or not file or path.is_absolute():
        raise ModelSourceError(
            f"model source {text}: expected pvc://claim/path, with the name of a PersistentVolumeClaim and a path in it"
        )
    _refuse_climbing(text, path)
    return ModelSource(text, path, claim=claim)


def _image(text: str, rest: str) -> ModelSource:
    """The image ends with the first part, after the registry's host, that has a tag or a digest."""
    parts = rest.split("/")
    tagged = [place for place, part in enumerate(parts) if ":" in part or "@" in part]
    name = parts[0].partition(":")[0]
    has_host = len(parts) > 1 and ("." in name or name == "localhost" or (len(tagged) > 1 and tagged[0] == 0))
    ends = [place for place in tagged if place > 0 or not has_host]
    image = "/".join(parts[: ends[0] + 1]) if ends else ""
    path = PurePosixPath("/".join(parts[ends[0] + 1 :])) if ends else PurePosixPath()
    if not path.name or path.is_absolute() or re.search(r"\s", image):
        raise ModelSourceError(
            f"model source {text}: expected oci://image:tag/path or oci://image@sha256:digest/path, with the path of "
            "the model in the image"
        )
    _refuse_climbing(text, path)
    return ModelSource(text, path, image=image)


def _refuse_climbing(text: str, path: PurePosixPath) -> None:
    if ".." in path.parts or "\0" in text:
        raise ModelSourceError(f"model source {text!r}: the path must not contain '..'; name the place itself")


def _package_folder(source: ModelSource, package: str) -> Path:
    """The package's folder. Looking up a top-level package runs none of its code."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a module without a spec, such as __main__
        spec = None
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not folders:
        raise ModelSourceError(
            f"model source {source.text}: no Python package {package} is installed here; install it, or name a file"
        )
    return next((Path(folder) for folder in folders if (Path(folder) / source.path).exists()), Path(folders[0]))
