"""Where a model lies: the one grammar of `--model` and `spec.model.source`.

Owns the schemes. In: the text of a source. Out: a `ModelSource`, its path on this machine, and the name it is served
under when nobody gives one. It opens no model file and runs no code of the package that holds one. A fault is a
`ModelSourceError` whose text is one sentence.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

FILE_SCHEME: Final = "file"
PACKAGE_SCHEME: Final = "package"
NOT_BUILT: Final = ("hf", "pvc", "oci")
MODEL_FILE_SUFFIXES: Final = frozenset({".gguf"})
"""Suffixes that are no part of a model's name; the dot in a folder name such as Qwen2.5-0.5B is part of it."""


class ModelSourceError(ValueError):
    """The source cannot be read as one, or nothing lies there; the text is one sentence for its reader."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A file or folder: below the folder of an installed `package`, or anywhere on this machine when that is None."""

    text: str
    path: PurePosixPath
    package: str | None = None


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
        case name if name in NOT_BUILT:
            raise ModelSourceError(f"model source {text}: {name}:// is not built yet; {_built()}")
    raise ModelSourceError(f"model source {text}: {scheme}:// is not a scheme; {_built()}")


def has_scheme(text: str) -> bool:
    """Whether the source says what it is, as manifests must: a bare path is for the command line only."""
    return "://" in text


def resolve_model_path(source: ModelSource) -> Path:
    """The existing file or folder on this machine. Raises ModelSourceError when there is none."""
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
        raise ModelSourceError(f"model source {text!r}: not a path; {_built()}")
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


def _built() -> str:
    return "write file:///path or package://python_package/file"
