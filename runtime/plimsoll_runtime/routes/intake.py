"""From bytes on the wire to one JSON object: size, patience, media type and JSON, before any dialect looks at it.

Owns the checks that all POST routes share. In: an ASGI request. Out: what a dialect makes of the object, or the
`Refusal` (413, 408, 415, 400). Invariants: no more than the limit is ever held; NaN, infinities, numbers that become
infinite, lone surrogates, duplicate keys and deep nesting do not get past here, so that whoever walks or repeats a
client's JSON can neither exhaust the stack nor write what is not JSON; a large body is handled off the event loop.
"""

import asyncio
import json
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from starlette.requests import Request

from plimsoll_runtime.contract.config import field_names
from plimsoll_runtime.refusal import Refusal, RefusalCode

BODY_SECONDS = 60.0
"""A whole body must arrive within this time."""
LARGE_BODY_BYTES = 256 * 1024
"""Above it, parsing and converting leave the event loop."""
MAX_JSON_DEPTH = 128
"""Far above any tool's schema, far below Python's recursion limit."""

Result = TypeVar("Result")
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


class _BadJsonError(Exception):
    """What is wrong with the text, in words."""


async def read_body(
    request: Request, max_body_bytes: int, convert: Callable[[dict[str, Any]], Result]
) -> Result | Refusal:
    """What `convert` makes of the JSON object that was sent. Raises ClientDisconnect when the client leaves first."""
    refusal = _media_type_refusal(request)
    if refusal is not None:
        return refusal
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await _read(request, max_body_bytes)
    except TimeoutError:
        return Refusal(code="request_timeout", message=f"the body did not arrive within {BODY_SECONDS:g} s")
    if isinstance(body, Refusal):
        return body
    if len(body) > LARGE_BODY_BYTES:
        return await asyncio.to_thread(_convert, body, convert)
    return _convert(body, convert)


def _convert(body: bytes, convert: Callable[[dict[str, Any]], Result]) -> Result | Refusal:
    parsed = parse_object(body)
    return parsed if isinstance(parsed, Refusal) else convert(parsed)


def parse_object(body: bytes) -> dict[str, Any] | Refusal:
    """Strict JSON, and an object at the top."""
    try:
        value = _parse(body)
    except _BadJsonError as bad:
        return Refusal(code="invalid_json", message=f"the body is not valid JSON: {bad}")
    if not isinstance(value, dict):
        return Refusal(code="invalid_type", message="the body must be a JSON object")
    return value


async def _read(request: Request, max_body_bytes: int) -> bytes | Refusal:
    too_large = Refusal(
        code="request_too_large",
        message=f"the body exceeds {max_body_bytes:,} bytes: send less, or raise {field_names('max_body_bytes')} on "
        "the server",
    )
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and (len(declared) > 18 or int(declared) > max_body_bytes):
        return too_large
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_body_bytes:
            return too_large
        chunks.append(chunk)
    return b"".join(chunks)


def _media_type_refusal(request: Request) -> Refusal | None:
    code: RefusalCode = "unsupported_media_type"
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        return Refusal(code=code, message="a content-encoding is not supported: send the body as it is")
    media_type, *parameters = request.headers.get("content-type", "").lower().split(";")
    if media_type.strip() != "application/json":
        return Refusal(code=code, message="the content-type must be application/json")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip().strip('"') not in {"utf-8", "utf8"}:
            return Refusal(code=code, message="the charset must be utf-8")
    return None


def _parse(body: bytes) -> Any:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _BadJsonError(f"it is not UTF-8 at byte {error.start}") from None
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite_number, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise _BadJsonError(f"{error.msg} at character {error.pos}") from None
    except RecursionError:
        raise _BadJsonError("it is nested too deeply") from None
    except ValueError as error:  # an integer with more digits than Python converts
        raise _BadJsonError(str(error).partition(";")[0]) from None
    if body.count(b"[") + body.count(b"{") > MAX_JSON_DEPTH and is_deeper(value, MAX_JSON_DEPTH):
        raise _BadJsonError(f"it is nested deeper than {MAX_JSON_DEPTH} levels")
    if _SURROGATE_ESCAPE.search(body) and _has_lone_surrogate(value):
        raise _BadJsonError("a string holds an unpaired surrogate")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise _BadJsonError(f"{name} is not a JSON number")


def _finite_number(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _BadJsonError(f"the number {text[:40]} is too large")
    return number


def is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects stand in one another more than `levels` deep; level by level, without a stack."""
    level = [value]
    for _ in range(levels):
        parts = (part for whole in level for part in (whole.values() if isinstance(whole, dict) else whole))
        level = [part for part in parts if isinstance(part, dict | list)]
        if not level:
            return False
    return True


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise _BadJsonError(f"the key {twice[:40]!r} stands twice in one object")
    return made


def _has_lone_surrogate(value: Any) -> bool:
    """`value` is no deeper than MAX_JSON_DEPTH."""
    if isinstance(value, str):
        return any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, dict):
        return any(_has_lone_surrogate(part) for pair in value.items() for part in pair)
    return isinstance(value, list) and any(_has_lone_surrogate(part) for part in value)
