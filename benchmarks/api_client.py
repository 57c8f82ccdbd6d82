"""The API server as a load: the fewest cycles per request that Python has, since both sides share the processor.

In: a kubeconfig with a token. Out: parsed JSON, or RuntimeError with the API server's own words. May be used from
several threads.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import urllib3
import yaml

CONNECTIONS = 8


class ApiClient:
    """One user of one API server."""

    def __init__(self, kubeconfig: Path) -> None:
        content = yaml.safe_load(kubeconfig.read_text())
        cluster, user = content["clusters"][0]["cluster"], content["users"][0]["user"]
        self._root = cluster["server"]
        self._headers = {"Authorization": f"Bearer {user['token']}", "Accept": "application/json"}
        self._http = urllib3.PoolManager(ca_certs=cluster["certificate-authority"], maxsize=CONNECTIONS, block=True)

    def get(self, path: str) -> dict[str, Any]:
        return self._ask("GET", path)

    def create(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        return self._ask("POST", path, document, "application/json")

    def patch(self, path: str, change: Mapping[str, Any]) -> dict[str, Any]:
        """JSON merge patch."""
        return self._ask("PATCH", path, change, "application/merge-patch+json")

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, content_type: str = ""
    ) -> dict[str, Any]:
        headers = self._headers | ({"Content-Type": content_type} if content_type else {})
        content = None if body is None else json.dumps(body)
        answer = self._http.request(method, self._root + path, body=content, headers=headers)
        document: dict[str, Any] = json.loads(answer.data)
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {document.get('message')}")
        return document
