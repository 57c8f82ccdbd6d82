"""What every benchmark's result says besides its figures, and where it goes.

Owns the description of the machine, and the two ways of telling: progress on standard error, the result as JSON.
"""

import json
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


def machine() -> dict[str, Any]:
    """The machine and the software that figures depend on, and how busy it was with other work."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[1],
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
