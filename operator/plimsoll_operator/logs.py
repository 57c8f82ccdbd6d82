"""What the operator prints: one line for each record, as text or as a JSON object.

Owns the format. In: the standard library's log records. Out: lines on standard error. Invariant: in JSON a record is
one line whatever it holds, traces included.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final, Literal

LogFormat = Literal["json", "text"]
LogLevel = Literal["debug", "info", "warning", "error"]
CHATTY: Final = ("kopf", "aiohttp", "urllib3", "kubernetes", "asyncio")
"""Libraries, which are heard from `warning` on unless everything is asked for."""


class JsonFormatter(logging.Formatter):
    """time, level, logger, message, and the trace where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up_logs(log_format: LogFormat, level: str) -> None:
    """For the whole process."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if log_format == "json" else text)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
