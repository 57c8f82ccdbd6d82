"""A model's chat template: messages in, one text out, as `transformers` would render it.

Owns compiling (at load) and rendering (per request, bounded). In: messages as plain JSON values, template arguments.
Out: the rendered text. It knows no tokens and repairs no messages: conversation.py says what is tried when a template
refuses. Invariants: the template changes nothing and reaches nothing outside itself; rendering ends within the limits
of render_meter.py; every failure is a `RenderFailure` with a sentence.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import meta, nodes

from plimsoll_runtime.text.errors import TemplateError
from plimsoll_runtime.text.render_meter import RenderLimitExceeded, RenderMeter
from plimsoll_runtime.text.sandbox import TemplateSandbox

MAX_SOURCE_SIZE = 1024 * 1024
"""Characters of a template's source; the largest published ones have some 30,000."""

_LONGEST_REASON = 500


class RenderFailure(Exception):
    """The template could not render these messages."""


class ChatTemplate:
    """Compiled once at load. Rendering is safe from several threads at once."""

    def __init__(
        self,
        source: str,
        bos_token: str | None,
        eos_token: str | None,
        *,
        named_tokens: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """`named_tokens`: more texts that the template may ask for by name, such as `pad_token`.

        Raises TemplateError for a template that cannot be compiled.
        """
        if len(source) > MAX_SOURCE_SIZE:
            raise TemplateError(
                f"the chat template has {len(source):,} characters: at most {MAX_SOURCE_SIZE:,} are compiled"
            )
        self._clock = clock
        self._sandbox = TemplateSandbox(now)
        tokens = {**(named_tokens or {}), "bos_token": bos_token, "eos_token": eos_token}
        # An absent token stays undefined, which renders as nothing; None would render as the word "None".
        self._tokens = {name: text for name, text in tokens.items() if text is not None}
        try:
            with self._sandbox.metered(RenderMeter(len(source), clock)):
                self._template = self._sandbox.from_string(source)
                tree = self._sandbox.parse(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TemplateError(f"the chat template cannot be compiled: {_reason(error)}") from error
        self.literal_text = _literal_text(tree)
        self.takes_tools = "tools" in meta.find_undeclared_variables(tree)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        template_arguments: Mapping[str, Any],
        add_generation_prompt: bool = True,
    ) -> str:
        """Raises RenderFailure; the template's own words, from `raise_exception`, are in its sentence."""
        meter = RenderMeter(_size([messages, template_arguments]), self._clock)
        arguments = {
            "tools": None,
            "documents": None,
            **self._tokens,
            **template_arguments,
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            with self._sandbox.metered(meter):
                return self._collect(arguments, meter.max_output)
        except Exception as error:
            # A template is a program: its mistakes come as any exception that Python has.
            raise RenderFailure(_reason(error)) from error

    def _collect(self, arguments: Mapping[str, Any], max_output: int) -> str:
        pieces, size = [], 0
        for piece in self._template.generate(arguments):
            pieces.append(piece)
            size += len(piece)
            if size > max_output:
                raise RenderLimitExceeded(f"its output is longer than {max_output:,} characters")
        return "".join(pieces)


def _reason(error: BaseException) -> str:
    sentence = str(error) or type(error).__name__
    return sentence if len(sentence) <= _LONGEST_REASON else f"{sentence[:_LONGEST_REASON]}..."


def _literal_text(tree: nodes.Template) -> str:
    """All text that the template itself can write, its pieces kept apart by NUL."""
    texts = [node.data for node in tree.find_all(nodes.TemplateData)]
    texts += [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    return "\0".join(texts)


def _size(value: Any) -> int:
    """Characters of all strings in a JSON value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_size(key) + _size(item) for key, item in value.items())
    if isinstance(value, Sequence):
        return sum(map(_size, value))
    return 0
