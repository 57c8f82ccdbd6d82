"""Request lines in, answer lines out: the two files of a bulk job, in the form of OpenAI's batch API.

Owns reading, checking and appending lines. In: a file of requests `{"custom_id", "method", "url", "body"}`. Out: one
line per request, whole or not at all. It sends nothing. Invariants: every request has an id of its own; an id that
already stands in the answers is not asked again; a line that a kill tore is cut off before the first new one.

Requests stay in their file: what is kept in memory of each is its id and its place.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, Self

from plimsoll_runtime.contract.endpoints import GENERATION_ROUTES


class BatchFileError(Exception):
    """A file that cannot be worked with; the text is one sentence that names file and line."""


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """One line: its id, its number from 1, and where its bytes begin."""

    custom_id: str
    line_number: int
    offset: int


@dataclass(frozen=True, slots=True)
class RequestLine:
    """What is sent."""

    custom_id: str
    url: str
    body: dict[str, Any]


class RequestFile:
    """The requests in order. Raises BatchFileError at construction for the first line that cannot be sent."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = BufferedReader(_open(path, "r"))
        try:
            self.requests = list(self._checked())
        except BatchFileError:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def read(self, request: BatchRequest) -> RequestLine:
        """The line of a request, read again."""
        self._file.seek(request.offset)
        return self._parse(self._file.readline(), request.line_number)

    def _checked(self) -> Iterator[BatchRequest]:
        seen: dict[str, int] = {}
        offset = 0
        for number, raw in enumerate(self._file, start=1):
            if raw.strip():
                line = self._parse(raw, number)
                if line.custom_id in seen:
                    raise self._error(
                        number,
                        f"has custom_id {line.custom_id!r}, which already stands in line {seen[line.custom_id]:,}",
                    )
                seen[line.custom_id] = number
                yield BatchRequest(line.custom_id, number, offset)
            offset += len(raw)

    def _parse(self, raw: bytes, number: int) -> RequestLine:
        try:
            line = json.loads(raw)
        except (ValueError, RecursionError):
            raise self._error(number, "is not JSON") from None
        if not isinstance(line, dict):
            raise self._error(number, "is not a JSON object")
        custom_id, url, body = line.get("custom_id"), line.get("url"), line.get("body")
        if not isinstance(custom_id, str) or not custom_id:
            raise self._error(number, "has no custom_id, a string that tells its answer from the others")
        if line.get("method", "POST") != "POST":
            raise self._error(number, f"has method {line['method']!r}: only POST is sent")
        if url not in GENERATION_ROUTES:
            raise self._error(number, f"has url {url!r}: it must be one of {', '.join(GENERATION_ROUTES)}")
        if not isinstance(body, dict):
            raise self._error(number, "has no body, the JSON object that is sent")
        if body.get("stream"):
            raise self._error(number, "asks for a stream: an answer is one line, so leave `stream` out")
        return RequestLine(custom_id, url, body)

    def _error(self, number: int, what: str) -> BatchFileError:
        return BatchFileError(f"{self._path} line {number:,} {what}")


class AnswerFile:
    """The answers so far, and where the next ones go. `answered` are the ids that stand there.

    The file is locked while it is open, so that two jobs never write the same one. Raises BatchFileError.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = _open(path, "a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.answered = self._read()
        except BlockingIOError:
            self._file.close()
            raise BatchFileError(f"{path} is being written by another job") from None
        except BatchFileError:
            self._file.close()
            raise

    def append(self, line: dict[str, Any]) -> None:
        """One answer, in one write."""
        raw = json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
        self._file.write(raw + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.fsync(self._file.fileno())
        self._file.close()

    def _read(self) -> dict[str, int]:
        """Status by id. What follows the last line's end was torn by a kill, and is cut off."""
        answered: dict[str, int] = {}
        end = 0
        self._file.seek(0)
        for number, raw in enumerate(self._lines(), start=1):
            end += len(raw)
            try:
                line = json.loads(raw)
                answered[line["custom_id"]] = line["response"]["status_code"]
            except (ValueError, KeyError, TypeError, RecursionError):
                raise BatchFileError(f"{self._path} line {number:,} is not an answer of a bulk job") from None
        self._file.truncate(end)
        return answered

    def _lines(self) -> Iterator[bytes]:
        with open(self._path, "rb") as file:
            yield from (raw for raw in file if raw.endswith(b"\n"))


def _open(path: Path, mode: str) -> FileIO:
    try:
        return FileIO(path, mode)
    except OSError as error:
        raise BatchFileError(f"{path} cannot be opened: {error.strerror}") from None
