"""A running server, as the small programs `budget` and `probe-routes` ask it: one request, one answer.

Owns the address as it was typed, and the words for a server that cannot be asked. In: a URL, a key file, requests. Out:
an `Answer` of whatever status. It knows no route and judges no answer. It needs only the standard library, so it runs
where no runtime is installed.
"""

import http.client
import json
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plimsoll_runtime.contract.key_file import key_headers


class NoAnswerError(Exception):
    """The server could not be asked; the text is one sentence."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`header` takes a name; `content` is empty for a stream, which is left after its headers."""

    status: int
    header: Callable[[str], str | None]
    content: bytes

    def json(self) -> Any:
        """None where the content is no JSON."""
        try:
            return json.loads(self.content)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class AskedServer:
    """`address`: http or https, host, perhaps a port and the beginning of every path."""

    address: urllib.parse.SplitResult
    patience_seconds: float
    headers: Mapping[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """The body is sent as JSON. Raises NoAnswerError."""
        connection = self._connection()
        sent = {"Content-Type": "application/json", **self.headers, **(headers or {})}
        target = f"{self.address.path.rstrip('/')}{path}"
        try:
            connection.request(method, target, None if body is None else json.dumps(body), sent)
            answer = connection.getresponse()
            streamed = answer.getheader("Content-Type", "").startswith("text/event-stream")
            return Answer(answer.status, answer.getheader, b"" if streamed else answer.read())
        except (OSError, ValueError, http.client.HTTPException) as error:
            place = f"{self.address.scheme}://{self.address.netloc}{target}"
            raise NoAnswerError(
                f"no server answers at {place}: {error}; is it running, and is its address right?"
            ) from None
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.address.scheme == "https" else http.client.HTTPConnection
        host, port = self.address.hostname, self.address.port
        assert host is not None, "asked_server has looked"
        return kind(host, port, timeout=self.patience_seconds)


def asked_server(url: str, key_file: str | None, patience_seconds: float) -> AskedServer:
    """The server at an address that somebody typed. Raises NoAnswerError."""
    try:
        address = urllib.parse.urlsplit(url)
        is_usable = address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except ValueError:  # a port that is none, a bracket that is not closed
        is_usable = False
    if not is_usable:
        raise NoAnswerError(f"{url} is not of the form http://host:port")
    try:
        headers = {} if key_file is None else key_headers(Path(key_file))
    except ValueError as error:
        raise NoAnswerError(str(error)) from None
    return AskedServer(address, patience_seconds, headers)
