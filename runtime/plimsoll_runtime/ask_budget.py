"""`plimsoll budget`: asks a running server what it would grant a request, and says why in words.

Owns the wording of a decision on the terminal. In: a request body as a file. Out: a table, or the server's answer as
JSON, and an exit code: 0 admitted, 3 refused, 1 no decision, 2 wrong arguments. It decides nothing itself and needs
only the standard library, so it runs where no runtime is installed.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from plimsoll_runtime.asked_server import Answer, NoAnswerError, asked_server
from plimsoll_runtime.contract.endpoints import (
    CHAT_COMPLETIONS,
    DECIDE_BUDGET,
    DEFAULT_PORT,
    GENERATION_ROUTES,
    HEADER_OVER_BUDGET,
)

EXIT_ADMITTED: Final = 0
EXIT_NO_DECISION: Final = 1
EXIT_REFUSED: Final = 3
PATIENCE_SECONDS: Final = 60.0


class NoDecisionError(Exception):
    """The server gave no decision, or there is no request; the text is one sentence."""


def main(arguments: Sequence[str]) -> int:
    """Ask, print, and return the exit code."""
    options = _parser().parse_args(list(arguments))
    try:
        decision = _ask(options)
    except (NoAnswerError, NoDecisionError) as error:
        print(f"plimsoll budget: {error}", file=sys.stderr)
        return EXIT_NO_DECISION
    print(json.dumps(decision, indent=2) if options.json else _table(options.route, decision))
    return EXIT_ADMITTED if decision["admitted"] else EXIT_REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="plimsoll budget",
        description="Ask a running server what it would grant a request, and why. Nothing is generated.",
        epilog="Exit code: 0 admitted, 3 refused, 1 no decision, 2 wrong arguments.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("file", metavar="FILE", help="the request's body as JSON, as it would be sent to the route; - reads it here")
    add("--url", default=f"http://127.0.0.1:{DEFAULT_PORT}", help="the server (default: %(default)s)")
    add("--route", default=CHAT_COMPLETIONS, help=f"one of {', '.join(GENERATION_ROUTES)} (default: %(default)s)")
    add("--over-budget", metavar="WORD", help="clamp or refuse, for this request (default: what the server does)")
    add("--api-key-file", metavar="PATH", help="file whose first key is sent (default: no key is sent)")
    add("--json", action="store_true", help="print the server's answer as it is")
    return parser


def _ask(options: argparse.Namespace) -> Mapping[str, Any]:
    server = asked_server(options.url, options.api_key_file, PATIENCE_SECONDS)
    headers = {} if options.over_budget is None else {HEADER_OVER_BUDGET: options.over_budget}
    body = {"route": options.route, "request": _request_body(options.file)}
    return _decision(options.url, server.ask("POST", DECIDE_BUDGET, body, headers))


def _request_body(file: str) -> Any:
    text = sys.stdin.read() if file == "-" else _read(file)
    try:
        return json.loads(text)
    except ValueError as error:
        raise NoDecisionError(f"{file} is not JSON: {error}") from None


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NoDecisionError(f"cannot read {file}: {error}") from None


def _decision(url: str, answer: Answer) -> Mapping[str, Any]:
    decision = answer.json()
    if answer.status != 200:
        raise NoDecisionError(f"the server answered {answer.status}: {_error_message(answer)}")
    if not isinstance(decision, dict) or not isinstance(decision.get("admitted"), bool):
        raise NoDecisionError(f"{url} answered, but not as a Plimsoll server does")
    return decision


def _error_message(answer: Answer) -> str:
    """The message in an error body of either API's shape, or the beginning of whatever came instead."""
    try:
        return str(answer.json()["error"]["message"])
    except (TypeError, KeyError):
        return answer.content[:200].decode("utf-8", "replace")


def _table(route: str, decision: Mapping[str, Any]) -> str:
    rows = _admitted_rows(decision) if decision["admitted"] else _refused_rows(decision)
    return "\n".join(f"{name:<25}{value}" for name, value in [("route", route), *rows])


def _admitted_rows(decision: Mapping[str, Any]) -> list[tuple[str, str]]:
    requested = decision["requested_output_tokens"]
    return [
        ("decision", "admitted"),
        ("prompt tokens", _number(decision["prompt_tokens"])),
        ("requested", "not given" if requested is None else _number(requested)),
        ("granted", _number(decision["max_output_tokens"])),
        ("limited by", f"{decision['limited_by']}: {_reason(decision)}"),
    ]


def _reason(decision: Mapping[str, Any]) -> str:
    context, prompt = _number(decision["context_length"]), _number(decision["prompt_tokens"])
    granted = _number(decision["max_output_tokens"])
    match decision["limited_by"]:
        case "request":
            return f"the request asked for {granted}, and gets it"
        case "default":
            return f"the request named no limit, and the server's default is {granted}"
        case "limit":
            return f"the server's hard limit is {granted}"
        case _:
            return f"context_length {context} - prompt_tokens {prompt} leaves room for {granted}"


def _refused_rows(decision: Mapping[str, Any]) -> list[tuple[str, str]]:
    error = decision["error"]["error"]
    names = ("prompt_tokens", "requested_output_tokens", "max_output_limit", "context_length")
    numbers = [(name.replace("_", " "), _number(error[name])) for name in names if error.get(name) is not None]
    return [("decision", f"refused with status {decision['status']}"), ("reason", str(error["message"])), *numbers]


def _number(value: int) -> str:
    return f"{value:,}"
