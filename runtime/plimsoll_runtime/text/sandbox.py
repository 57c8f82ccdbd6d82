"""The Jinja environment of chat templates: what `transformers` offers them, in a sandbox that counts.

Owns which words a template may use and the places where work is charged. In: a template's source. Out: a compiled
template that renders only while a `RenderMeter` is set. It does not know messages.

A chat template is a program inside a model file that anyone may have written. The sandbox keeps it from Python's
internals and from changing its input; the meter keeps it from running or growing without end. Charged are loop
rounds, macro calls, calls, filters, operators that make texts, and output. Source: Jinja's sandbox documentation.
"""

import functools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, TypeVar, cast

import jinja2
import jinja2.ext
from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from plimsoll_runtime.text.render_meter import MAX_INTEGER_BITS, RenderLimitExceeded, RenderMeter

_REMOVED_GLOBALS = ("lipsum", "cycler")
_REMOVED_FILTERS = ("urlize", "pprint", "random", "xmlattr")
_PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "indent", "wordwrap", "batch", "slice"})
_REPLACING = frozenset({"replace"})
_JOINING = frozenset({"join"})
_PRINTING_WORDS = """
    tojson string upper lower trim title capitalize escape e forceescape safe truncate striptags wordcount format
    urlencode filesizeformat join replace center indent wordwrap
"""
_PRINTING = frozenset(_PRINTING_WORDS.split())
"""Filters that print a value that is no text before they work on it."""

_WIDE_FORMAT = re.compile(r"\d{4,}|\*|\{[^{}]*\{")
"""A width or precision of four digits and more, or one that is itself an argument."""


_Body = TypeVar("_Body", nodes.For, nodes.Macro, nodes.CallBlock)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """One per template. Rendering needs `metered`; without a meter every charge is refused."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, jinja2.ext.loopcontrols],
            finalize=_charge_output,
            optimized=False,
        )
        self._meter: ContextVar[RenderMeter] = ContextVar("render_meter")
        for name in _REMOVED_GLOBALS:
            del self.globals[name]
        for name in _REMOVED_FILTERS:
            del self.filters[name]
        self.filters["tojson"] = _tojson
        self.filters = {name: _charged(self, name, function) for name, function in self.filters.items()}
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": functools.partial(_strftime, now),
            "namespace": _TemplateNamespace,
        }

    @contextmanager
    def metered(self, meter: RenderMeter) -> Iterator[None]:
        """Let everything that this environment does inside be charged to `meter`."""
        token = self._meter.set(meter)
        try:
            yield
        finally:
            self._meter.reset(token)

    @property
    def meter(self) -> RenderMeter:
        return self._meter.get()

    def charge_round(self, literal_size: int) -> str:
        """Charge one round of a loop or one run of a macro, with the size of the literal text inside."""
        self.meter.step(made=literal_size)
        return ""

    def charged_items(self, values: Any) -> list[Any]:
        """All values that a loop will read."""
        return list(self.meter.items(values))

    def charged_concat(self, *values: Any) -> str:
        """What `~` does."""
        return "".join([_text(self.meter, value) for value in values])

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        # The names leave every keyword free for the function that is called, as in Jinja.
        name = getattr(__obj, "__name__", "")
        subject = getattr(__obj, "__self__", None)
        if isinstance(subject, str):
            __self.meter.contents([args, kwargs])
            _charge_growth(__self.meter, name, subject, args, kwargs)
        return __self.meter.value(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        _refuse_wide_format(value.__self__)
        return functools.partial(_charged_format, self.meter, wrapped)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _charge_operator(self.meter, operator, left, right)
        return self.meter.value(super().call_binop(context, operator, left, right))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        charged: nodes.Template = _ChargeWork().visit(tree)
        return charged


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks what the model wrote, for training; rendering it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - the name and type are Jinja's

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _ChargeWork(NodeTransformer):
    """Puts the charges into a template's syntax tree."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        node.iter = _own_call("charged_items", [node.iter])
        return self._charge_body(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:
        return self._charge_body(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.CallBlock:
        return self._charge_body(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return _own_call("charged_concat", node.nodes)

    def _charge_body(self, node: _Body) -> _Body:
        literal_size = sum(len(text.data) for child in node.body for text in child.find_all(nodes.TemplateData))
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_own_call("charge_round", [nodes.Const(literal_size)])))
        return node


class _TemplateNamespace(Namespace):
    """A namespace whose names do not begin with an underscore: Python's internals do."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        for name in dict(*args[1:], **kwargs):
            _refuse_underscore(name)
        Namespace.__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _own_call(name: str, arguments: Sequence[nodes.Node]) -> nodes.Expr:
    return nodes.Call(
        nodes.EnvironmentAttribute(name), [cast(nodes.Expr, argument) for argument in arguments], [], None, None
    )


def _refuse_underscore(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot have the name {name!r}")


@pass_context
def _charge_output(context: Context, value: Any) -> Any:
    # Taking the context also keeps Jinja from working out constants at load, where nothing would be charged.
    environment = context.environment
    assert isinstance(environment, TemplateSandbox)
    return _text(environment.meter, value)


def _text(meter: RenderMeter, value: Any) -> str:
    """What printing the value gives; its size is charged before it is printed."""
    meter.contents(value)
    return value if isinstance(value, str) else str(value)


def _charged(environment: TemplateSandbox, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that charges for what it reads and makes."""
    subject_at = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def charged(*args: Any, **kwargs: Any) -> Any:
        meter, arguments = environment.meter, list(args)
        subject = arguments[subject_at] if len(arguments) > subject_at else None
        if isinstance(subject, Iterator):
            arguments[subject_at] = meter.items(subject)
        elif isinstance(subject, (list, tuple, dict, range)):
            meter.step(len(subject))
        if name in _PRINTING:
            meter.contents([subject, *args[subject_at + 1 :]])
        if name == "format":
            _refuse_wide_format(subject)
        _charge_growth(meter, name, subject, args[subject_at + 1 :], kwargs)
        return meter.value(function(*arguments, **kwargs))

    return charged


def _charged_format(meter: RenderMeter, wrapped: Callable[..., str], *args: Any, **kwargs: Any) -> str:
    meter.contents([args, kwargs])
    return wrapped(*args, **kwargs)


def _charge_growth(meter: RenderMeter, name: str, subject: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Charge, before it is done, for what makes a text or list larger by a number or by another text."""
    values = [*args, *kwargs.values()]
    if name in _PADDING:
        width = max((abs(value) for value in values if isinstance(value, int)), default=0)
        lines = subject.count("\n") + 1 if name in ("indent", "expandtabs") and isinstance(subject, str) else 1
        meter.step(made=width * max(lines, subject.count("\t") if isinstance(subject, str) else 0))
    elif name in _REPLACING and isinstance(subject, str) and len(values) > 1:
        old, new = str(values[0]), str(values[1])
        times = subject.count(old) if old else len(subject) + 1
        meter.step(made=len(subject) + times * len(new))
    elif name in _JOINING and values:
        separator, joined = (subject, values[0]) if isinstance(subject, str) else (values[0], subject)
        meter.step(made=len(str(separator)) * len(joined) if hasattr(joined, "__len__") else 0)


def _charge_operator(meter: RenderMeter, operator: str, left: Any, right: Any) -> None:
    if operator == "*":
        size = max(_length(left) * _number(right), _length(right) * _number(left))
        meter.step(made=size)
    elif operator == "**":
        if _number(left).bit_length() * _number(right) > MAX_INTEGER_BITS:
            raise RenderLimitExceeded(f"it computes an integer of more than {MAX_INTEGER_BITS:,} bits")
    elif operator == "%":
        _refuse_wide_format(left)
        meter.contents(right)
    else:
        meter.step(made=_length(left) + _length(right))


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, list, tuple)) else 0


def _number(value: Any) -> int:
    return abs(value) if isinstance(value, int) else 0


def _refuse_wide_format(pattern: Any) -> None:
    if isinstance(pattern, str) and _WIDE_FORMAT.search(pattern):
        raise RenderLimitExceeded("it formats with a width of four digits or more, or with one that is computed")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, without the escapes that HTML would need."""
    if (isinstance(indent, int) and indent > 64) or (isinstance(indent, str) and len(indent) > 64):
        raise RenderLimitExceeded("it indents JSON by more than 64")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime(now: Callable[[], datetime], pattern: str) -> str:
    _refuse_wide_format(pattern)
    return now().strftime(pattern)


def _raise_exception(message: Any) -> None:
    raise jinja2.TemplateError(message if isinstance(message, str) else "the template refused the messages")
