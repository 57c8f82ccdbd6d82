"""Kubernetes objects as YAML for people.

Owns the layout. In: a document. Out: text in which each part is written out where it stands, in the order given.
"""

from collections.abc import Mapping
from typing import Any

import yaml


def written_out(document: Mapping[str, Any]) -> str:
    return yaml.dump(dict(document), Dumper=_WrittenOut, sort_keys=False, width=110, allow_unicode=True)


class _WrittenOut(yaml.SafeDumper):
    """No anchors: a part that occurs twice stands twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
