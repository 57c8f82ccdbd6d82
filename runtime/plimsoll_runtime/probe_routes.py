"""`plimsoll probe-routes`: asks every route of a running server for more than it may give, and expects one answer.

Owns the comparison. In: a server's address. Out: a table, and an exit code: 0 one answer, 1 several or none, 2 wrong
arguments. Each route is asked for as many output tokens as the whole context, once to be refused and once to be
clamped; a clamped answer is streamed and left after its headers, so almost nothing is generated. It decides nothing
itself and needs only the standard library, so it runs where no runtime is installed.
"""

import argparse
import http.client
import json
import sys
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from plimsoll_runtime.contract.endpoints import (
    BUDGET,
    CHAT_COMPLETIONS,
    COMPLETIONS,
    DEFAULT_PORT,
    GENERATION_ROUTES,
    HEADER_LIMITED_BY,
    HEADER_MAX_OUTPUT_TOKENS,
    HEADER_OVER_BUDGET,
    HEADER_PROMPT_TOKENS,
    MESSAGES,
    MODELS,
    RESPONSES,
    Route,
)
from plimsoll_runtime.contract.key_file import key_headers

TEXT: Final = "Say hello."
Body = Callable[[int], dict[str, Any]]
BODIES: Final[Mapping[Route, Body]] = {
    CHAT_COMPLETIONS: lambda limit: {"messages": [_message()], "max_completion_tokens": limit},
    COMPLETIONS: lambda limit: {"prompt": TEXT, "max_tokens": limit},
    MESSAGES: lambda limit: {"messages": [_message()], "max_tokens": limit},
    RESPONSES: lambda limit: {"input": TEXT, "max_output_tokens": limit},
}


class ProbeError(Exception):
    """The server could not be asked; the text is one sentence."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where to ask, and what every request carries."""

    host: str
    port: int
    secure: bool
    headers: Mapping[str, str]
    patience_seconds: float

    def ask(self, method: str, path: str, body: Any = None, over_budget: str | None = None) -> "Answer":
        """Headers, and the body of whatever is not a stream. Raises ProbeError."""
        kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        connection = kind(self.host, self.port, timeout=self.patience_seconds)
        headers = {"Content-Type": "application/json", **self.headers}
        if over_budget is not None:
            headers[HEADER_OVER_BUDGET] = over_budget
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            streamed = answer.getheader("Content-Type", "").startswith("text/event-stream")
            return Answer(answer.status, answer.getheader, b"" if streamed else answer.read())
        except (OSError, http.client.HTTPException) as error:
            raise ProbeError(f"{path} of {self.host}:{self.port} does not answer: {error}") from None
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class Answer:
    """`header` takes a name; `content` is empty for a stream."""

    status: int
    header: Callable[[str], str | None]
    content: bytes

    def json(self) -> Any:
        """Raises ProbeError."""
        try:
            return json.loads(self.content)
        except ValueError:
            raise ProbeError(f"status {self.status}, not JSON: {self.content[:100]!r}") from None


def main(arguments: Sequence[str]) -> int:
    """Ask, print, and return the exit code."""
    options = _parser().parse_args(list(arguments))
    try:
        answers = probe(_server(options))
    except ProbeError as error:
        print(f"plimsoll probe-routes: {error}", file=sys.stderr)
        return 1
    for route, answer in answers.items():
        print(f"{route:<24}{answer}")
    if len(set(answers.values())) > 1:
        print("plimsoll probe-routes: the routes differ, see the table", file=sys.stderr)
        return 1
    print("one answer on every route")
    return 0


def probe(server: Server) -> Mapping[str, str]:
    """What each route answered, in words that are the same where the decision is. Raises ProbeError."""
    context_length = server.ask("GET", BUDGET).json().get("context_length")
    if not isinstance(context_length, int):
        raise ProbeError(f"{BUDGET} names no context_length: is this a Plimsoll server, and has it loaded its model?")
    model = _model(server)
    return {route: _both_answers(server, route, model, context_length) for route in GENERATION_ROUTES}


def _both_answers(server: Server, route: Route, model: str, limit: int) -> str:
    body = {"model": model, "stream": True, **BODIES[route](limit)}
    try:
        refused = _refusal(server.ask("POST", route, body, "refuse"))
        clamped = _grant(server.ask("POST", route, body, "clamp"))
    except ProbeError as error:
        return str(error)
    return f"{limit:,} tokens asked for: refuse {refused}; clamp {clamped}"


def _refusal(answer: Answer) -> str:
    if answer.status != 400:
        return f"gives status {answer.status} instead of 400"
    error = answer.json().get("error")
    names = ("requested_output_tokens", "max_output_limit", "context_length")
    if not isinstance(error, dict) or not all(name in error for name in names):
        return "gives 400 without the numbers of a budget"
    return "gives 400 with " + ", ".join(f"{name} {error[name]}" for name in names)


def _grant(answer: Answer) -> str:
    """Prompts differ by the chat template, so a grant up to the context is compared by its sum with the prompt."""
    if answer.status != 200:
        return f"gives status {answer.status} instead of 200"
    granted, prompt = answer.header(HEADER_MAX_OUTPUT_TOKENS), answer.header(HEADER_PROMPT_TOKENS)
    if not (granted and prompt and granted.isdecimal() and prompt.isdecimal()):
        return "gives 200 without the numbers of a budget"
    if answer.header(HEADER_LIMITED_BY) == "context":
        return f"grants the rest of {int(granted) + int(prompt):,}"
    return f"grants {int(granted):,}, limited by {answer.header(HEADER_LIMITED_BY)}"


def _model(server: Server) -> str:
    answer = server.ask("GET", MODELS)
    if answer.status == 401:
        raise ProbeError("the server wants an API key: name its file with --api-key-file")
    try:
        return str(answer.json()["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise ProbeError(f"{MODELS} names no model") from None


def _message() -> dict[str, str]:
    return {"role": "user", "content": TEXT}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="plimsoll probe-routes",
        description="Ask every route of a running server for more than it may give, and expect one answer.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("url", nargs="?", default=f"http://127.0.0.1:{DEFAULT_PORT}", help="the server (default: %(default)s)")
    add("--api-key-file", metavar="PATH", help="file whose first key is sent (default: no key is sent)")
    add("--timeout", type=float, default=120.0, metavar="SECONDS", help="per request (default: %(default)s)")
    return parser


def _server(options: argparse.Namespace) -> Server:
    parts = urllib.parse.urlsplit(options.url)
    if parts.scheme not in ("http", "https") or parts.hostname is None:
        raise ProbeError(f"{options.url} is not of the form http://host:port")
    secure = parts.scheme == "https"
    port = parts.port if parts.port is not None else 443 if secure else 80
    return Server(parts.hostname, port, secure, _key_headers(options.api_key_file), options.timeout)


def _key_headers(file: str | None) -> Mapping[str, str]:
    if file is None:
        return {}
    try:
        return key_headers(Path(file))
    except ValueError as error:
        raise ProbeError(str(error)) from None
