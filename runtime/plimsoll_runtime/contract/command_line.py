"""The flags of `plimsoll serve`, generated from `RuntimeConfig`, in both directions.

Owns how a setting is spelt as a flag. In: the arguments after `serve`. Out: a `RuntimeConfig`, and back again: for
every config, `read_flags(render_flags(config)) == config`. It knows no single setting by name except `model`, and
reads no environment. Invariant: a wrong flag or value is one sentence that names the flag, what was given and what
is allowed, and exit code 2.
"""

import argparse
import difflib
import math
import re
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from pydantic import ValidationError

from plimsoll_runtime.contract.config import RuntimeConfig
from plimsoll_runtime.contract.values import value_text
from plimsoll_runtime.contract.wording import (
    allowed_values,
    configuration_fault,
    default_text,
    item_schema,
    refused_value,
    unit_of,
    value_schema,
)

WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,30}")
DECIMAL_NUMBER: Final = re.compile(r"[+-]?([0-9]{1,30}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][+-]?[0-9]{1,3})?")
NO_VALUE: Final = object()
"""Stands for a flag that was given without the value it needs."""


class FlagError(ValueError):
    """The command line cannot be understood; the text is one sentence for its reader."""


def parse_flags(arguments: Sequence[str]) -> RuntimeConfig:
    """As `read_flags`, in the manner of a program: a fault is printed and ends it with exit code 2."""
    try:
        return read_flags(arguments)
    except FlagError as error:
        print(f"plimsoll serve: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def read_flags(arguments: Sequence[str]) -> RuntimeConfig:
    """The configuration that these flags mean. Raises FlagError; `--help` prints and raises SystemExit(0)."""
    for argument in arguments:
        _check_switch(argument)
    given, rest = _parser().parse_known_args(list(arguments))
    if rest:
        raise FlagError(_unknown_argument(rest[0]))
    values = {name: _value(name, text) for name, text in vars(given).items()}
    try:
        return RuntimeConfig(**values)
    except ValidationError as error:
        raise FlagError(configuration_fault(error, flag_name)) from None


def render_flags(config: RuntimeConfig) -> list[str]:
    """The shortest flags that mean this configuration: what equals its default is left out."""
    flags = []
    for name, field in RuntimeConfig.model_fields.items():
        value = getattr(config, name)
        if isinstance(value, bool):
            flags += [] if value == field.default else [flag_name(name) if value else f"--no-{flag_name(name)[2:]}"]
        elif value != field.default:
            flags.append(f"{flag_name(name)}={value_text(value)}")
    return flags


def flag_name(name: str) -> str:
    return f"--{name.replace('_', '-')}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise FlagError(message.removeprefix("argument "))


class _HelpFormatter(argparse.RawTextHelpFormatter):
    """Shows a value as required: that it may be missing is only how a missing one gets our sentence."""

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        return str(action.metavar) if action.metavar else super()._format_args(action, default_metavar)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="plimsoll serve",
        usage="plimsoll serve --model SOURCE [flags]",
        description="Run one inference server. Every flag is also a field of an InferenceServer where a path is given.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=_HelpFormatter,
    )
    for name in RuntimeConfig.model_fields:
        _add_flag(parser, name)
    return parser


def _add_flag(parser: argparse.ArgumentParser, name: str) -> None:
    text = _help_text(name).replace("%", "%%")
    if value_schema(name)["type"] == "boolean":
        parser.add_argument(flag_name(name), action=argparse.BooleanOptionalAction, help=text)
    else:
        metavar = unit_of(name).upper()
        parser.add_argument(flag_name(name), nargs="?", const=NO_VALUE, metavar=metavar, help=text)


def _help_text(name: str) -> str:
    description, schema = RuntimeConfig.model_fields[name].description, value_schema(name)
    facts = [f"default: {default_text(name)}"]
    if schema["type"] != "boolean":
        facts.insert(0, f"allowed: {allowed_values(name)}")
    if schema["spec"]:
        facts.append(f"manifest: spec.{schema['spec']}")
    return "\n".join([_wrapped(str(description)), *facts, ""])


def _wrapped(text: str) -> str:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= 84:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def _value(name: str, text: Any) -> Any:
    """A flag's text in the type of its setting; bounds are left to `RuntimeConfig`. Switches have no text."""
    if isinstance(text, bool):
        return text
    if text is NO_VALUE:
        raise FlagError(f"{flag_name(name)}: no value was given, allowed is {allowed_values(name)}")
    match value_schema(name)["type"]:
        case "integer" if unit_of(name) == "amount":
            return text  # a suffix is the configuration's own affair
        case "array":
            return tuple(_item(name, item, text) for item in text.split(","))
        case "integer" if WHOLE_NUMBER.fullmatch(text):
            return int(text)
        case "number" if DECIMAL_NUMBER.fullmatch(text) and math.isfinite(float(text)):
            return float(text)
        case "string" if text:
            return text
    raise FlagError(refused_value(flag_name(name), text, name))


def _item(name: str, item: str, text: str) -> Any:
    """One entry of a list: a whole number, or NAME=NUMBER for the fields of a group of two."""
    schema = item_schema(name)
    if schema["type"] == "integer" and WHOLE_NUMBER.fullmatch(item):
        return int(item)
    label, equals, number = item.partition("=")
    if schema["type"] == "object" and equals and WHOLE_NUMBER.fullmatch(number):
        return dict(zip(schema["properties"], (label, int(number)), strict=True))
    raise FlagError(refused_value(flag_name(name), text, name))


def _check_switch(argument: str) -> None:
    flag, equals, value = argument.partition("=")
    if equals and flag in _switches():
        raise FlagError(f"{flag}: {value!r} was given, but a switch takes no value: write {' or '.join(_switches())}")


def _unknown_argument(argument: str) -> str:
    if not argument.startswith("-"):
        return f"{argument!r} was given without a flag: name the setting it is for, as in --model SOURCE"
    flag = argument.partition("=")[0]
    near = difflib.get_close_matches(flag, [*map(flag_name, RuntimeConfig.model_fields), *_switches()], n=1)
    hint = f"did you mean {near[0]}?" if near else "plimsoll serve --help lists the flags"
    return f"{flag} is not a flag of plimsoll serve: {hint}"


def _switches() -> list[str]:
    """The flags without a value, each as on and off."""
    names = [name for name in RuntimeConfig.model_fields if value_schema(name)["type"] == "boolean"]
    return [flag for name in names for flag in (flag_name(name), f"--no-{flag_name(name)[2:]}")]
