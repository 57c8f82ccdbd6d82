"""Request files for bulk jobs, and their answers."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from doubles.server import MODEL
from plimsoll_runtime.contract import endpoints


def request_line(custom_id: str, limit: int | None = 2, **changes: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "ignore_eos": True}
    if limit is not None:
        body["max_completion_tokens"] = limit
    line = {"custom_id": custom_id, "method": "POST", "url": endpoints.CHAT_COMPLETIONS, "body": body}
    return {key: value for key, value in (line | changes).items() if value != "REMOVED"}


def write_lines(path: Path, lines: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
