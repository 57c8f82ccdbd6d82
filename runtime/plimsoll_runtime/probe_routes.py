"""`plimsoll probe-routes`: asks every route of a running server for more than it may give, and expects one answer.

Owns the comparison. In: a server's address. Out: a table, and an exit code: 0 one answer, 1 several or none, 2 wrong
arguments. Each route is asked for as many output tokens as the whole context, once to be refused and once to be
clamped; a clamped answer is streamed and left after its headers, so almost nothing is generated. It decides nothing
itself and needs only the standard library, so it runs where no runtime is installed.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from plimsoll_runtime.asked_server import Answer, AskedServer, NoAnswerError, asked_server
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

TEXT: Final = "Say hello."
Body = Callable[[int], dict[str, Any]]
BODIES: Final[Mapping[Route, Body]] = {
    CHAT_COMPLETIONS: lambda limit: {"messages": [_message()], "max_completion_tokens": limit},
    COMPLETIONS: lambda limit: {"prompt": TEXT, "max_tokens": limit},
    MESSAGES: lambda limit: {"messages": [_message()], "max_tokens": limit},
    RESPONSES: lambda limit: {"input": TEXT, "max_output_tokens": limit},
}


class ProbeError(Exception):
    """The server answers otherwise than a Plimsoll server; the text is one sentence."""


def main(arguments: Sequence[str]) -> int:
    """Ask, print, and return the exit code."""
    options = _parser().parse_args(list(arguments))
    try:
        answers = probe(asked_server(options.url, options.api_key_file, options.timeout))
    except (NoAnswerError, ProbeError) as error:
        print(f"plimsoll probe-routes: {error}", file=sys.stderr)
        return 1
    for route, answer in answers.items():
        print(f"{route:<24}{answer}")
    if len(set(answers.values())) > 1:
        print("plimsoll probe-routes: the routes differ, see the table", file=sys.stderr)
        return 1
    print("one answer on every route")
    return 0


def probe(server: AskedServer) -> Mapping[str, str]:
    """What each route answered, in words that are the same where the decision is. Raises NoAnswerError, ProbeError."""
    context_length = _object(server.ask("GET", BUDGET)).get("context_length")
    if not isinstance(context_length, int):
        raise ProbeError(f"{BUDGET} names no context_length: is this a Plimsoll server, and has it loaded its model?")
    model = _model(server)
    return {route: _both_answers(server, route, model, context_length) for route in GENERATION_ROUTES}


def _both_answers(server: AskedServer, route: Route, model: str, limit: int) -> str:
    body = {"model": model, "stream": True, **BODIES[route](limit)}
    try:
        refused = _refusal(server.ask("POST", route, body, {HEADER_OVER_BUDGET: "refuse"}))
        clamped = _grant(server.ask("POST", route, body, {HEADER_OVER_BUDGET: "clamp"}))
    except (NoAnswerError, ProbeError) as error:
        return str(error)
    return f"{limit:,} tokens asked for: refuse {refused}; clamp {clamped}"


def _refusal(answer: Answer) -> str:
    if answer.status != 400:
        return f"gives status {answer.status} instead of 400"
    error = _object(answer).get("error")
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


def _model(server: AskedServer) -> str:
    answer = server.ask("GET", MODELS)
    if answer.status == 401:
        raise ProbeError("the server wants an API key: name its file with --api-key-file")
    try:
        return str(_object(answer)["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise ProbeError(f"{MODELS} names no model") from None


def _object(answer: Answer) -> Mapping[str, Any]:
    """Raises ProbeError."""
    content = answer.json()
    if not isinstance(content, dict):
        raise ProbeError(f"status {answer.status}, not a JSON object: {answer.content[:100]!r}")
    return content


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
