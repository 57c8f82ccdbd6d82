"""The one sentence that a program ends with when it cannot go on: on standard error, and where Kubernetes reads it.

Owns `StartError`, which carries it up, and the name of the environment variable through which the operator says where
that is. In: a program's word and the sentence. Out: both texts, and the exit code. Invariant: a file that cannot be
written never hides the sentence.
"""

import os
import sys
from pathlib import Path
from typing import Final

TERMINATION_LOG_VARIABLE: Final = "PLIMSOLL_TERMINATION_LOG"
"""Holds the container's terminationMessagePath; unset outside of Kubernetes."""
MAX_MESSAGE_BYTES: Final = 2048
"""Kubernetes keeps 4096 of a container and 12 KiB of a pod; a sentence needs less."""


class StartError(Exception):
    """Why this server cannot start: one sentence for whoever runs it."""


def give_up(program: str, sentence: str) -> int:
    """Says why `plimsoll PROGRAM` ends, and returns the exit code 1."""
    print(f"plimsoll {program}: {sentence}", file=sys.stderr, flush=True)
    place = os.environ.get(TERMINATION_LOG_VARIABLE)
    if place:
        _write(Path(place), sentence)
    return 1


def _write(place: Path, sentence: str) -> None:
    message = sentence.encode("utf-8", "replace")[:MAX_MESSAGE_BYTES].decode("utf-8", "ignore")
    try:
        place.write_text(message, encoding="utf-8")
    except OSError as error:
        print(f"plimsoll: {TERMINATION_LOG_VARIABLE} {place} cannot be written: {error}", file=sys.stderr, flush=True)
