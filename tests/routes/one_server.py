"""One scripted server that answers by what the prompt says, so that a test asks for the answer it wants to see."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from doubles.scripted_model import NOT_A_NUMBER, Script
from doubles.server import ScriptedServer, Vocabulary, scripted_server

SCRIPTS: Mapping[str, tuple[str | bytes, ...]] = {
    "normal": ("Hel", "lo", "!"),
    "greet": ("Hel", "lo", " ", b"\xf0\x9f", b"\x8c\x8d", "!"),
    "stop": ("A B ", "STO", "P C"),
    "unicode": ("ok ", b"\xf0\x9f", b"\x8c\x8d", b" \xe4\xbd", b"\xa0"),
    "empty": (),
}
"""Prompt -> the pieces of its answer. The prompt `forever` never ends, `broken` fails at its fourth token."""

UNICODE_TEXT = "ok 🌍 你"
CONTEXT = 64


def _script(vocabulary: Vocabulary) -> Script:
    ids = {prompt: [*vocabulary.ids(pieces), vocabulary.end_id] for prompt, pieces in SCRIPTS.items()}
    letter = vocabulary.ids(["a"])[0]

    def write(prompt_ids: tuple[int, ...], position: int) -> int:
        prompt = bytes(token_id for token_id in prompt_ids if token_id < 256).decode()
        if prompt.endswith("broken") and position == 3:
            return NOT_A_NUMBER
        answer = next((ids[name] for name in ids if prompt.endswith(name)), [letter])
        return answer[min(position, len(answer) - 1)]

    return write


@contextlib.contextmanager
def answering_server(**settings: Any) -> Iterator[ScriptedServer]:
    """`settings` are fields of RuntimeConfig."""
    pieces = [piece for script in SCRIPTS.values() for piece in script]
    with scripted_server(_script, pieces=pieces, **{"context_length": CONTEXT, **settings}) as server:
        yield server
