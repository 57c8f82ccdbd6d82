"""API keys: who may ask, and which tenant they are.

Owns the middleware that asks for a key on every path but the probes: deny by default, so a new route is covered before
it is written. In: a key file (contract/key_file.py), read again when it changes. Out: the tenant (a hash of the key) in
the request's scope, or 401 in the path's own dialect. Keys are kept as SHA-256 digests alone, and compared in constant
time. Without a file there is one tenant.
"""

import hashlib
import hmac
import logging
import os
import uuid
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from plimsoll_runtime.contract.config import field_names
from plimsoll_runtime.contract.endpoints import WITHOUT_KEY
from plimsoll_runtime.contract.key_file import read_keys
from plimsoll_runtime.meters import Meters
from plimsoll_runtime.refusal import Refusal
from plimsoll_runtime.routes.errors import error_response
from plimsoll_runtime.routes.paths import route_label

ONE_TENANT = "everyone"
_LOG = logging.getLogger("plimsoll")


class KeyFile:
    """The keys of one file. Raises ValueError at construction when it cannot be read or holds no key."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._digests: tuple[bytes, ...] = ()
        self._complaint = ""
        try:
            self._read(self._current_stamp())
        except OSError as error:
            raise ValueError(
                f"the API key file {path} cannot be read ({error.strerror}): name another with "
                f"{field_names('api_key_file')}"
            ) from None

    def tenant_of(self, key: bytes) -> str | None:
        """The tenant of a key, or None for a key that is not in the file. A file that went away keeps its last keys."""
        try:
            self._read_if_changed()
        except (OSError, ValueError) as error:
            # A Secret is being replaced: the keys of a moment ago still count, and the next request looks again.
            self._stamp = None
            self._complain(str(error))
        digest = hashlib.sha256(key).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return digest.hex() if any(matches) else None

    def _read_if_changed(self) -> None:
        stamp = self._current_stamp()
        if stamp != self._stamp:
            self._read(stamp)

    def _current_stamp(self) -> tuple[int, int, int]:
        status = os.stat(self._path)
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(self, stamp: tuple[int, int, int]) -> None:
        digests = tuple(hashlib.sha256(key.encode()).digest() for key in read_keys(self._path))
        self._digests, self._stamp, self._complaint = digests, stamp, ""

    def _complain(self, complaint: str) -> None:
        """Once for each trouble, however many requests meet it."""
        if complaint != self._complaint:
            self._complaint = complaint
            _LOG.warning("the keys read before still count: %s", complaint)


class KeyMiddleware:
    """Asks for a key, as `Authorization: Bearer` or `x-api-key`, on every path outside `WITHOUT_KEY`."""

    def __init__(self, app: ASGIApp, keys: KeyFile | None, meters: Meters) -> None:
        self._app = app
        self._keys = keys
        self._meters = meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # there are none, and one that came to be should not be open to everyone
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        tenant = ONE_TENANT
        if self._keys is not None and scope["path"] not in WITHOUT_KEY:
            known = self._keys.tenant_of(_key_of(scope))
            if known is None:
                self._meters.refused(route_label(scope["path"]), "invalid_api_key")
                refusal = Refusal(
                    code="invalid_api_key",
                    message="the API key is missing or wrong: send one of the server's keys as "
                    "'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                )
                await error_response(refusal, scope["path"], uuid.uuid4().hex)(scope, receive, send)
                return
            tenant = known
        scope["tenant"] = tenant
        await self._app(scope, receive, send)


def _key_of(scope: Scope) -> bytes:
    headers: dict[bytes, bytes] = dict(scope["headers"])
    scheme, _, token = headers.get(b"authorization", b"").strip().partition(b" ")
    if scheme.lower() == b"bearer" and token.strip():
        return token.strip()
    return headers.get(b"x-api-key", b"").strip()
