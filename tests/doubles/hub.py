"""A model hub on this machine: the paths that `plimsoll fetch` asks for, and the faults that real ones have.

A repository is a table of names and contents at one commit. `cut_after` ends the connection in the middle of a large
file, `hold_after` goes silent there; both count from the first byte that is sent. What was asked is in `seen`.
"""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LARGE_BYTES = 4096
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class Seen:
    path: str
    range: str | None
    authorization: str | None


@dataclass(slots=True)
class Hub:
    """What the server answers; a test changes it between two runs."""

    files: dict[str, bytes]
    repository: str = "org/tiny"
    revisions: tuple[str, ...] = ("main",)
    token: str | None = None
    commit: str = "c" * 40
    cut_after: int | None = None
    hold_after: int | None = None
    damage: bool = False
    gated: bool = False
    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def asked_for(self, name: str) -> list[Seen]:
        return [request for request in self.seen if request.path.endswith(f"/{name}")]

    def siblings(self) -> list[dict[str, Any]]:
        return [_sibling(name, content) for name, content in self.files.items()]


@contextmanager
def running_hub(files: Mapping[str, bytes], address: str = "127.0.0.1") -> Iterator[Hub]:
    hub = Hub(dict(files))

    class Handler(_Handler):
        answers = hub

    with ThreadingHTTPServer((address, 0), Handler) as server:
        server.daemon_threads = True
        hub.url = f"http://{address}:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield hub
        finally:
            hub.released.set()
            server.shutdown()
            thread.join()


def _sibling(name: str, content: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": _git_id(content)}
    if len(content) >= LARGE_BYTES:
        digest = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"size": len(content), "sha256": digest, "pointerSize": 134}
    return entry


def _git_id(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answers: Hub

    def do_GET(self) -> None:
        hub = self.answers
        hub.seen.append(Seen(self.path, self.headers.get("Range"), self.headers.get("Authorization")))
        api, files = f"/api/models/{hub.repository}", f"/{hub.repository}/resolve/{hub.commit}/"
        path = self.path.partition("?")[0]
        if hub.token is not None and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self._refuse(401, "RepoNotFound")
        elif hub.gated:
            self._refuse(403, "GatedRepo")
        elif path in (api, *(f"{api}/revision/{revision}" for revision in hub.revisions)):
            self._json({"id": hub.repository, "sha": hub.commit, "siblings": hub.siblings()})
        elif path.startswith(f"{api}/revision/"):
            self._refuse(404, "RevisionNotFound")
        elif path.startswith(files) and path.removeprefix(files) in hub.files:
            self._file(hub.files[path.removeprefix(files)])
        else:
            self._refuse(404, "RepoNotFound")

    def _file(self, content: bytes) -> None:
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        self._send(bytes(len(content) - start) if self.answers.damage else content[start:])

    def _send(self, body: bytes) -> None:
        hub = self.answers
        for start in range(0, len(body), _PIECE):
            if hub.cut_after is not None and start >= hub.cut_after:
                self.close_connection = True
                return
            if hub.hold_after is not None and start >= hub.hold_after:
                hub.released.wait()
                return
            self.wfile.write(body[start : start + _PIECE])

    def _json(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Nothing on standard error."""
