"""One server of a bulk job: what it allows, and one request to it.

Owns the HTTP of a job: limits from `/v1/models` and `/budget`, and what the status of an answer means for the line. It
knows no files and no other servers. Invariant: an outcome is an answer that belongs into the output, or says how long
to wait before the line is sent again; nothing else happens to a line.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from plimsoll_runtime.bulk.batch_files import RequestLine
from plimsoll_runtime.contract import endpoints

UNKNOWN_SLOTS = 8
"""Requests at once on a server that does not say how many it computes at once."""

MAX_WAIT_SECONDS = 30.0
"""Longest pause before a server that gave no answer, or no usable `Retry-After`, is asked again."""

_BUSY = frozenset({408, 409, 425, 429, 503, 504, 529})
_SAME_FOR_ALL = frozenset({401, 403, 404, 405, 415})
"""Statuses that say something about the job, whatever the line."""


class ServerError(Exception):
    """A server that cannot take part; the text is one sentence."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What a server says of itself; None where it says nothing. All but `running_slots` in tokens."""

    model: str
    context_length: int | None
    max_output_default: int | None
    max_output_limit: int | None
    over_budget: str | None
    running_slots: int | None

    def __str__(self) -> str:
        numbers = {
            "context": self.context_length,
            "default output": self.max_output_default,
            "output limit": self.max_output_limit,
            "slots": self.running_slots,
        }
        said = [f"{name} {number:,}" for name, number in numbers.items() if number is not None]
        return ", ".join(
            [f"model {self.model}", *said, *([f"over budget: {self.over_budget}"] if self.over_budget else [])]
        )


@dataclass(frozen=True, slots=True)
class Answered:
    """A line is done: the status and the body go into the output; headers carry the budget."""

    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def same_for_all(self) -> bool:
        """Whether every other line would be refused in the same way: its own prompt has nothing to do with it."""
        return self.status in _SAME_FOR_ALL or (self.status == 400 and _exceeds_whatever_the_prompt(self.error))

    @property
    def error(self) -> Mapping[str, Any]:
        """The error of a refusal, in either API's shape; empty for a success or an unknown shape."""
        error = self.body.get("error") if isinstance(self.body, dict) else None
        return error if isinstance(error, dict) else {}


@dataclass(frozen=True, slots=True)
class SendAgain:
    """Nothing came of it: the server is busy, stopping or gone; or it failed on this line and said so in `failure`."""

    wait_seconds: float
    reason: str
    failure: Answered | None


class Server:
    """Not more than one event loop may use it."""

    def __init__(self, url: str, headers: Mapping[str, str], patience_seconds: float) -> None:
        self.url = url.rstrip("/")
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        timeout = httpx.Timeout(patience_seconds, connect=10.0, pool=None)
        self._client = httpx.AsyncClient(base_url=self.url, headers=headers, limits=limits, timeout=timeout)
        self._failures = 0

    async def limits(self) -> ServerLimits:
        """Raises ServerError."""
        models = await self._get(endpoints.MODELS)
        try:
            model: Mapping[str, Any] = models["data"][0]
            name = str(model["id"])
        except (KeyError, IndexError, TypeError):
            raise ServerError(f"{self.url}{endpoints.MODELS} names no model") from None
        try:
            budget = await self._get(endpoints.BUDGET)
        except ServerError:
            budget = {}  # not a Plimsoll server: it says less, and may be used all the same
        return ServerLimits(
            model=name,
            context_length=_whole(model.get("context_length", model.get("max_model_len"))),
            max_output_default=_whole(budget.get("max_output_default")),
            max_output_limit=_whole(budget.get("max_output_limit")),
            over_budget=budget.get("over_budget"),
            running_slots=_whole(budget.get("running_slots")),
        )

    async def send(self, line: RequestLine) -> Answered | SendAgain:
        """One try."""
        try:
            answer = await self._client.post(line.url, json=line.body)
            body = answer.json()
        except (httpx.HTTPError, ValueError, UnicodeDecodeError) as error:
            return self._again(str(error) or type(error).__name__, None, None)
        answered = Answered(answer.status_code, body, answer.headers)
        may_go_better = answer.headers.get(endpoints.HEADER_SHOULD_RETRY) != "false"
        if may_go_better and (answer.status_code in _BUSY or answer.status_code >= 500):
            reason = f"status {answer.status_code}: {_message(body)}"
            failure = None if answer.status_code in _BUSY else answered
            return self._again(reason, answer.headers.get("retry-after"), failure)
        self._failures = 0
        return answered

    async def close(self) -> None:
        await self._client.aclose()

    def _again(self, reason: str, retry_after: str | None, failure: Answered | None) -> SendAgain:
        """The server's own word counts; without one, pauses double with every failure in a row."""
        self._failures += 1
        wait = min(MAX_WAIT_SECONDS, 0.1 * 2.0 ** min(self._failures, 20))
        if retry_after is not None and retry_after.strip().isdecimal():
            wait = max(0.1, float(retry_after))
        return SendAgain(wait, f"{self.url}: {reason}", failure)

    async def _get(self, path: str) -> Mapping[str, Any]:
        try:
            answer = await self._client.get(path)
            content = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise ServerError(f"{self.url}{path} does not answer: {error or type(error).__name__}") from None
        if answer.status_code != 200 or not isinstance(content, dict):
            raise ServerError(f"{self.url}{path} gives status {answer.status_code}: {_message(content)}")
        return content


def _exceeds_whatever_the_prompt(error: Mapping[str, Any]) -> bool:
    """Asked for more output than the hard limit, or than an empty prompt would leave room for."""
    asked = _whole(error.get("requested_output_tokens"))
    limit, context = _whole(error.get("max_output_limit")), _whole(error.get("context_length"))
    if asked is None:
        return False
    return (limit is not None and asked > limit) or (context is not None and asked >= context)


def _whole(value: Any) -> int | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return int(value) if is_number else None


def _message(body: Any) -> str:
    try:
        return str(body["error"]["message"])
    except (KeyError, TypeError):
        return json.dumps(body)[:200]
