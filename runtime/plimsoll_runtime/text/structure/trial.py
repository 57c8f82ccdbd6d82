"""Whether a grammar can be compiled within bounds, found out in a process of its own (trial_process.py).

Owns that process: it is started with the first grammar, and again after one that ended it. In: grammars, on one thread
at a time. Out: nothing, or a StructureError. What was found is remembered, so that a form which comes with every
request of a job is tried once.
"""

import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import plimsoll_runtime
from plimsoll_runtime.text.structure.errors import StructureError
from plimsoll_runtime.text.structure.trial_process import COMPILE_SECONDS

COMMAND: Final = (sys.executable, "-m", "plimsoll_runtime.text.structure.trial_process")
MOST_REMEMBERED: Final = 1024
_MOST_CHARACTERS: Final = 300
_TOO_LARGE: Final = "it takes more memory to compile than a form may take: make it smaller"
_DEATHS: Final[Mapping[int, str]] = {
    -signal.SIGPROF: f"it takes more than {COMPILE_SECONDS:g} s to compile: make it simpler",
    -signal.SIGSEGV: "its parts refer to each other too deeply: make the chains of references shorter",
}
"""Why the process ended, by its exit code; anything else was the memory."""


class GrammarTrial:
    """Not for two threads at once. `close` ends the process."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._found: dict[bytes, str | None] = {}

    def check(self, grammar: str) -> None:
        """Raises StructureError with what is wrong, in words."""
        key = hashlib.sha256(grammar.encode()).digest()
        if key not in self._found:
            if len(self._found) >= MOST_REMEMBERED:
                del self._found[next(iter(self._found))]
            self._found[key] = self._try(grammar)
        complaint = self._found[key]
        if complaint is not None:
            raise StructureError(complaint)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _try(self, grammar: str) -> str | None:
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(grammar) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if answer:
            complaint: str | None = json.loads(answer)
            return None if complaint is None else _in_short(complaint)
        code = process.wait()
        self.close()
        return _DEATHS.get(code, _TOO_LARGE)

    def _start(self) -> "subprocess.Popen[str]":
        """Without the environment's own Python path, the package is where this one is."""
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            cwd=Path(plimsoll_runtime.__file__).parents[1],
        )


def _in_short(complaint: str) -> str:
    """What is wrong with a regular expression, else the first line: behind it stand backtraces and states."""
    if complaint.startswith("panic"):
        return "it is too large: make it smaller"
    lines = complaint.splitlines()
    told = next((line for line in lines if line.startswith("error: ")), lines[0])
    return told[:_MOST_CHARACTERS]
