"""Which grammar belongs to which name of `--tool-call-parser`.

Owns the table and how a parser is put together. In: a name and the tools of a request. Out: a parser for one choice.
"""

from collections.abc import Callable
from typing import Final

from plimsoll_runtime.contract.config import ToolCallFormat
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

GRAMMARS: Final[dict[ToolCallFormat, Callable[[Reader, Writer, Tools], Grammar]]] = {
    "hermes": Hermes,
    "qwen3_coder": Qwen3Coder,
    "llama3_json": Llama3Json,
    "mistral": Mistral,
    "deepseek": Deepseek,
    "pythonic": Pythonic,
    "json": GenericJson,
}


def new_parser(name: ToolCallFormat, tools: Tools, *, takes_one: bool = False) -> ToolCallParser:
    """A parser for one choice. `takes_one`: it is over with the first complete call."""
    reader = Reader()
    writer = Writer(reader, takes_one=takes_one)
    return ToolCallParser(reader, writer, GRAMMARS[name](reader, writer, tools))
