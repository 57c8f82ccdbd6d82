"""One scripted server that both OpenAI dialects' SDK tests talk to: the prompt says which answer is written."""

from collections.abc import Iterator
from contextlib import contextmanager

import openai

from doubles.scripted_model import NOT_A_NUMBER, Script
from doubles.server import ScriptedServer, Vocabulary, scripted_server

ANSWERS: dict[str, list[str | bytes]] = {
    "greet": ["Hel", "lo", " ", b"\xf0\x9f", b"\x8c\x8d", "!"],
    "cite": ["A B ", "STO", "P C"],
    "break": ["x", "y", "z"],
}
RUNAWAY = "run"
"""The prompt whose answer never ends by itself."""

FAR_LIMIT = 16_000
"""A limit that takes the scripted model so many steps that an abort comes long before it."""


@contextmanager
def openai_server() -> Iterator[tuple[ScriptedServer, openai.OpenAI]]:
    """The server and a client that does not try again."""
    pieces = [piece for answer in ANSWERS.values() for piece in answer]
    with (
        scripted_server(_script, pieces=pieces, max_output_default=20, context_length=20_000) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield server, client


def _script(vocabulary: Vocabulary) -> Script:
    written = {prompt: vocabulary.ids(pieces) for prompt, pieces in ANSWERS.items()}
    last = dict.fromkeys(ANSWERS, vocabulary.end_id) | {"break": NOT_A_NUMBER}
    runaway = vocabulary.ids(["a"])[0]

    def script(prompt_ids: tuple[int, ...], position: int) -> int:
        prompt = bytes(prompt_ids).decode()
        ids = written.get(prompt)
        if ids is None:
            return runaway
        return ids[position] if position < len(ids) else last[prompt]

    return script
