"""`plimsoll plan FILE`: prints the objects that the operator would apply, without a cluster.

Owns the command. In: a file of manifests. Out: YAML on standard output, and an exit code: 0, or 2 for a wrong manifest.
What only a cluster knows is left out: owner references, and the record of earlier revisions.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from plimsoll_operator.desired import DEFAULT_OPERATOR_NAMESPACE, OperatorSettings, desired
from plimsoll_operator.manifest_file import read_manifests
from plimsoll_operator.spec import InferenceServer, ManifestError
from plimsoll_operator.yaml_text import written_out

DEV_IMAGE: Final = "localhost/plimsoll/runtime:dev"
"""What `make cluster-images` builds; an installed operator was told another by its chart."""


def main(arguments: Sequence[str]) -> int:
    """Print every object of every manifest; returns the exit code."""
    options = _parser().parse_args(list(arguments))
    settings = OperatorSettings(runtime_image=options.image, operator_namespace=options.operator_namespace)
    try:
        text = "---\n".join(plan_text(manifest, settings, place) for place, manifest in _manifests(Path(options.file)))
    except ManifestError as error:
        print(f"plimsoll plan: {error}", file=sys.stderr)
        return 2
    print(text, end="")
    return 0


def plan_text(server: InferenceServer, settings: OperatorSettings, place: str) -> str:
    """The server's objects as YAML documents. Raises ManifestError, which names the place."""
    try:
        objects = desired(server, settings)
    except ManifestError as error:
        raise ManifestError(f"{place}: {error}") from None
    return "---\n".join(written_out(each) for each in objects)


def _manifests(file: Path) -> list[tuple[str, InferenceServer]]:
    manifests = read_manifests(file)
    if not manifests:
        raise ManifestError(f"{file} holds no manifest")
    return manifests


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="plimsoll plan",
        description="Print the Kubernetes objects that the operator would apply for the manifests of a file.",
        allow_abbrev=False,
    )
    parser.add_argument("file", metavar="FILE", help="YAML, one document per server")
    parser.add_argument(
        "--image", default=DEV_IMAGE, help="runtime image of servers that name none (default: %(default)s)"
    )
    parser.add_argument(
        "--operator-namespace",
        default=DEFAULT_OPERATOR_NAMESPACE,
        metavar="NAMESPACE",
        help="from where replicas are asked for their limits (default: %(default)s)",
    )
    return parser
