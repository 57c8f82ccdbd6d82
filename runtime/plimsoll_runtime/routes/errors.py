"""Every error answer: one table from refusal code to status, and one body shape per family of dialects.

Owns statuses, error types, headers and the sentences that real clients match on. In: a `Refusal` and the path that was
asked. Out: a JSON response. Messages live under `/v1/messages` and speak Anthropic's shape; all else speaks OpenAI's.
Invariants: never FastAPI's 422, never an HTML page, never an empty body.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from plimsoll_runtime.contract.endpoints import (
    HEADER_PROMPT_TOKENS,
    HEADER_QUEUE_WAIT_ESTIMATE,
    HEADER_SHOULD_RETRY,
    MESSAGES,
)
from plimsoll_runtime.refusal import Refusal, RefusalCode


@dataclass(frozen=True, slots=True)
class _Answer:
    """Status and error type of one code, for each family."""

    openai_status: int
    openai_type: str
    anthropic_status: int
    anthropic_type: str


_INVALID = _Answer(400, "invalid_request_error", 400, "invalid_request_error")
_NOT_FOUND = _Answer(404, "invalid_request_error", 404, "not_found_error")
_OVERLOADED = _Answer(429, "rate_limit_error", 529, "overloaded_error")

_ANSWERS: Mapping[RefusalCode, _Answer] = {
    "invalid_api_key": _Answer(401, "authentication_error", 401, "authentication_error"),
    "not_found": _NOT_FOUND,
    "model_not_found": _NOT_FOUND,
    "method_not_allowed": _Answer(405, "invalid_request_error", 405, "invalid_request_error"),
    "request_timeout": _Answer(408, "invalid_request_error", 408, "invalid_request_error"),
    "request_too_large": _Answer(413, "invalid_request_error", 413, "request_too_large"),
    "unsupported_media_type": _Answer(415, "invalid_request_error", 415, "invalid_request_error"),
    "rate_limit_exceeded": _OVERLOADED,
    "queue_timeout": _OVERLOADED,
    "unavailable": _Answer(503, "server_error", 529, "overloaded_error"),
    "deadline_exceeded": _Answer(504, "server_error", 504, "timeout_error"),
    "engine_failure": _Answer(500, "server_error", 500, "api_error"),
}
"""Codes that are not here are a client's mistake in the body: 400."""

RETRY_AFTER_SECONDS: Mapping[RefusalCode, int] = {"rate_limit_exceeded": 1, "queue_timeout": 5, "unavailable": 5}
"""When to come again, where the refusal itself does not know better."""

_CODE_ON_THE_WIRE: Mapping[RefusalCode, str] = {"queue_timeout": "rate_limit_exceeded"}


_NOT_AGAIN = frozenset({"deadline_exceeded"})
"""The same request would take as long again, so the SDKs are told not to repeat it."""

_UNREAD = frozenset({"request_too_large", "request_timeout"})
"""Their bodies were not read to the end, so the connection cannot be used again."""


def speaks_anthropic(path: str) -> bool:
    """Whether errors under this path have Anthropic's shape."""
    return path == MESSAGES or path.startswith(MESSAGES + "/")


def error_response(refusal: Refusal, path: str, request_id: str) -> Response:
    """The whole answer to a request that is not served."""
    headers = {}
    retry_after_seconds = refusal.retry_after_seconds
    if retry_after_seconds is None:
        retry_after_seconds = RETRY_AFTER_SECONDS.get(refusal.code)
    if retry_after_seconds is not None:
        headers["retry-after"] = str(retry_after_seconds)
    if refusal.wait_estimate_seconds is not None:
        headers[HEADER_QUEUE_WAIT_ESTIMATE] = str(refusal.wait_estimate_seconds)
    if refusal.code in _NOT_AGAIN:
        headers[HEADER_SHOULD_RETRY] = "false"
    if refusal.allow is not None:
        headers["allow"] = refusal.allow
    if "prompt_tokens" in refusal.numbers:
        headers[HEADER_PROMPT_TOKENS] = str(refusal.numbers["prompt_tokens"])
    if refusal.code in _UNREAD:
        headers["connection"] = "close"
    if speaks_anthropic(path):
        headers["request-id"] = request_id
    return Response(
        json.dumps(error_body(refusal, path, request_id), ensure_ascii=False, allow_nan=False),
        status_code=error_status(refusal, path),
        headers=headers,
        media_type="application/json",
    )


def nobody_left() -> Response:
    """Ends a request whose client has closed the connection; the status is never sent."""
    return Response(status_code=499)


def error_status(refusal: Refusal, path: str) -> int:
    """The HTTP status of a refusal on this path."""
    answer = _ANSWERS.get(refusal.code, _INVALID)
    return answer.anthropic_status if speaks_anthropic(path) else answer.openai_status


def error_body(refusal: Refusal, path: str, request_id: str) -> dict[str, Any]:
    """The JSON body of a refusal on this path; the numbers of a budget stand inside `error`."""
    answer = _ANSWERS.get(refusal.code, _INVALID)
    if speaks_anthropic(path):
        error: dict[str, Any] = {"type": answer.anthropic_type, "message": _anthropic_message(refusal)}
        error.update(refusal.numbers)
        return {"type": "error", "error": error, "request_id": request_id}
    return {
        "error": {
            "message": _openai_message(refusal),
            "type": answer.openai_type,
            "param": refusal.param,
            "code": _CODE_ON_THE_WIRE.get(refusal.code, refusal.code),
            **refusal.numbers,
        }
    }


def _openai_message(refusal: Refusal) -> str:
    numbers = refusal.numbers
    match refusal.budget_cause:
        case "prompt":
            return (
                f"This model's maximum context length is {numbers['context_length']} tokens. However, your messages "
                f"resulted in {numbers['prompt_tokens']} tokens. {refusal.message}"
            )
        case "request":
            return (
                f"This model's maximum context length is {numbers['context_length']} tokens. However, you requested "
                f"{_sum(numbers)} tokens ({numbers['prompt_tokens']} in the messages, "
                f"{numbers['requested_output_tokens']} in the completion). {refusal.message}"
            )
        case _:
            return refusal.message


def _anthropic_message(refusal: Refusal) -> str:
    numbers = refusal.numbers
    match refusal.budget_cause:
        case "prompt":
            return (
                f"prompt is too long: {numbers['prompt_tokens']} tokens > {numbers['context_length']} maximum. "
                f"{refusal.message}"
            )
        case "request":
            return (
                f"input length and `max_tokens` exceed context limit: {numbers['prompt_tokens']} + "
                f"{numbers['requested_output_tokens']} > {numbers['context_length']}, decrease input length or "
                f"`max_tokens` and try again. {refusal.message}"
            )
        case "limit":
            return (
                f"max_tokens: {numbers['requested_output_tokens']} > {numbers['max_output_limit']}, which is the "
                f"maximum allowed number of output tokens. {refusal.message}"
            )
        case None:
            return refusal.message


def _sum(numbers: Mapping[str, int | None]) -> int:
    prompt_tokens, requested_output_tokens = numbers["prompt_tokens"], numbers["requested_output_tokens"]
    assert prompt_tokens is not None, "the budget law counts every prompt"
    assert requested_output_tokens is not None, "an omitted limit is never the cause"
    return prompt_tokens + requested_output_tokens
