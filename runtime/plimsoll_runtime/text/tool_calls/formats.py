"""Which grammar belongs to which name of `--tool-call-parser`.

Owns the table and how a parser is put together. In: a name and the tools of a request. Out: a parser for one choice,
and the ids of the control tokens that it must see as text.
"""

from collections.abc import Callable
from typing import Final

from plimsoll_runtime.request import ToolUse
from plimsoll_runtime.text.tokenizer import Tokenizer
from plimsoll_runtime.text.tool_calls.deepseek import Deepseek
from plimsoll_runtime.text.tool_calls.generic_json import GenericJson
from plimsoll_runtime.text.tool_calls.hermes import Hermes
from plimsoll_runtime.text.tool_calls.llama3_json import Llama3Json
from plimsoll_runtime.text.tool_calls.mistral import Mistral
from plimsoll_runtime.text.tool_calls.parser import Grammar, ToolCallParser, Tools
from plimsoll_runtime.text.tool_calls.pythonic import Pythonic
from plimsoll_runtime.text.tool_calls.qwen3_coder import Qwen3Coder
from plimsoll_runtime.text.tool_calls.reader import Reader
from plimsoll_runtime.text.tool_calls.writer import Writer

GRAMMARS: Final[dict[str, Callable[[Reader, Writer, Tools], Grammar]]] = {
    "hermes": Hermes,
    "qwen3_coder": Qwen3Coder,
    "llama3_json": Llama3Json,
    "mistral": Mistral,
    "deepseek": Deepseek,
    "pythonic": Pythonic,
    "json": GenericJson,
}


class ToolCallFormat:
    """The format of one model. Some of its marks may be control tokens there: `shown_ids`."""

    def __init__(self, name: str, tokenizer: Tokenizer) -> None:
        self._name = name
        reader = Reader()
        grammar = GRAMMARS[name](reader, Writer(reader, takes_one=False), {})
        marks = (*grammar.openers, *grammar.first_openers, *grammar.closers, *grammar.marks)
        self.shown_ids = tokenizer.control_ids(marks)

    def parser(self, tool_use: ToolUse) -> ToolCallParser:
        """A parser for one choice of a request."""
        tools = {tool.name: tool.parameters for tool in tool_use.tools}
        return new_parser(self._name, tools, takes_one=not tool_use.parallel)


def new_parser(name: str, tools: Tools, *, takes_one: bool = False) -> ToolCallParser:
    """A parser for one choice. `takes_one`: it is over with the first complete call."""
    reader = Reader()
    writer = Writer(reader, takes_one=takes_one)
    return ToolCallParser(reader, writer, GRAMMARS[name](reader, writer, tools))
