"""A scripted server whose model answers with the recorded answers of one format of tool calls (text/tool_call_corpus).

The prompt `ask 3;` is answered by the corpus's row 3, in tokens of seven characters. The template shows tools, calls
and results as JSON, and `prompts` has what the model was given.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from doubles.scripted_model import Script
from doubles.server import ScriptedServer, Vocabulary, scripted_server
from text.tool_call_corpus import CORPORA, pieces_of

WITH_TOOLS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<{{ call.id }} {{ call.function.name }} "
    "{{ call.function.arguments | tojson }}>{% endfor %}"
    "{% if message.tool_call_id %}({{ message.tool_call_id }}){% endif %}{% endfor %}"
)


@dataclass
class ToolServer:
    """The server, and the corpus that it answers from."""

    server: ScriptedServer
    rows: list[dict[str, Any]]
    tools: dict[str, Any]
    prompts: list[str] = field(default_factory=list)

    def row(self, name: str) -> int:
        """The number of the row of this name."""
        return next(index for index, row in enumerate(self.rows) if row["name"] == name)


@contextlib.contextmanager
def tool_server(parser: str = "hermes", *, template: str = WITH_TOOLS, **settings: Any) -> Iterator[ToolServer]:
    """`settings` are fields of RuntimeConfig."""
    corpus = CORPORA[parser]
    texts = [pieces_of(row["text"], 7) for row in corpus["answers"]]
    prompts: list[str] = []

    def script(vocabulary: Vocabulary) -> Script:
        answers = [[*vocabulary.ids(pieces), vocabulary.end_id] for pieces in texts]

        def write(prompt_ids: tuple[int, ...], position: int) -> int:
            prompt = bytes(token_id for token_id in prompt_ids if token_id < 256).decode()
            if position == 0:
                prompts.append(prompt)
            asked = prompt.rpartition("ask ")[2].partition(";")[0]
            answer = answers[int(asked)] if asked.isdigit() else [vocabulary.end_id]
            return answer[min(position, len(answer) - 1)]

        return write

    settings = {"context_length": 4096, "tool_call_parser": parser, **settings}
    pieces = [piece for text in texts for piece in text]
    with scripted_server(script, pieces=pieces, template=template, page_size=16, **settings) as server:
        prompts.clear()
        yield ToolServer(server, corpus["answers"], corpus["tools"], prompts)
