"""Files with InferenceServer manifests: YAML, one document for each server.

Owns how a file is read. In: a path. Out: manifests with their place in the file. Invariants: a key that stands twice is
refused, as the API server does, where YAML keeps the last; so is a server that stands twice.
"""

from pathlib import Path
from typing import Any

import yaml

from plimsoll_operator.spec import InferenceServer, ManifestError, read_manifest


def read_manifests(file: Path) -> list[tuple[str, InferenceServer]]:
    """(place in the file, manifest) of every document that is not empty. Raises ManifestError."""
    try:
        documents = list(yaml.load_all(file.read_text(encoding="utf-8"), _UniqueKeyLoader))
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"cannot read {file}: {error}") from None
    except yaml.YAMLError as error:
        raise ManifestError(f"{file} is not YAML: {' '.join(str(error).split())}") from None
    manifests: list[tuple[str, InferenceServer]] = []
    for number, document in enumerate(documents, 1):
        if document is None:
            continue
        place = f"{file}, document {number}"
        try:
            manifest = read_manifest(document)
        except ManifestError as error:
            raise ManifestError(f"{place}: {error}") from None
        if manifest.name in [other.name for _, other in manifests if other.namespace == manifest.namespace]:
            raise ManifestError(f"{place}: metadata.name {manifest.name} was used before; names must differ")
        manifests.append((place, manifest))
    return manifests


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for number, key in enumerate(keys):
            if key in keys[:number]:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)
