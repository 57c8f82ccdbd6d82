"""The one command `plimsoll`: which program a word starts.

Owns the table of subcommands. Each is imported only when it is called, by name, so that the runtime and the operator
need not know each other nor be installed together. A program takes the arguments after its word and returns the exit
code: 0 done, 1 could not, 2 wrong arguments. Invariant: SIGTERM ends the process from its first moment on; a program
that has something to finish installs a handler of its own.
"""

import importlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, MappingProxyType
from typing import Any, Final

Program = Callable[[Sequence[str]], int]


@dataclass(frozen=True, slots=True)
class Command:
    """`target` is `module:function`; `extra` is what must be installed for it.

    `arguments`: the `module:function` that reads the arguments, where the program itself takes seconds to import: it
    prints `--help` and ends on wrong arguments before that. `environment`: the `module:function` that gives
    variables which the program's libraries read when they are imported; they are set where they are not yet.
    """

    target: str
    summary: str
    extra: str
    arguments: str = ""
    environment: str = ""


COMMANDS: Final[Mapping[str, Command]] = MappingProxyType(
    {
        "serve": Command(
            "plimsoll_runtime.__main__:serve",
            "serve one model over HTTP",
            "runtime",
            arguments="plimsoll_runtime.contract.command_line:parse_flags",
            environment="plimsoll_runtime.kernels.native:thread_environment",
        ),
        "up": Command("plimsoll_operator.local:main", "run InferenceServer manifests on this machine", "operator"),
        "budget": Command(
            "plimsoll_runtime.ask_budget:main", "ask a running server what it would grant a request, and why", "runtime"
        ),
        "bulk": Command(
            "plimsoll_runtime.bulk.command:main", "send a file of requests, and write every answer once", "bulk"
        ),
        "plan": Command(
            "plimsoll_operator.plan_command:main", "print the objects that the operator would apply", "operator"
        ),
        "generate": Command(
            "plimsoll_operator.generate:main", "write the reference pages from the contract", "operator"
        ),
        "fetch": Command("plimsoll_runtime.fetch:main", "bring a model from a Hugging Face hub into a folder", "fetch"),
        "pack": Command(
            "plimsoll_runtime.pack_experts:main", "pack a mixture's experts for serving them from disk", "runtime"
        ),
        "probe-routes": Command(
            "plimsoll_runtime.probe_routes:main", "ask every route for too much, and expect one answer", "runtime"
        ),
        "operator": Command("plimsoll_operator.__main__:main", "run the operator in a cluster", "operator"),
    }
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code; without arguments as the process, with its arguments and signals."""
    if arguments is None:
        signal.signal(signal.SIGTERM, _end)
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] in (["-h"], ["--help"], ["help"]):
        print(_overview())
        return 0
    name = words[0] if words else ""
    if name not in COMMANDS:
        print(_unknown(name), file=sys.stderr)
        return 2
    return _run(name, words[1:])


def _end(signal_number: int, frame: FrameType | None) -> None:
    """Process 1 of a container has no default action for SIGTERM: without this it lives on until its grace is over."""
    raise SystemExit(128 + signal_number)


def _run(name: str, arguments: Sequence[str]) -> int:
    command = COMMANDS[name]
    if command.arguments:
        _load(command.arguments)(arguments)
    if command.environment:
        for variable, value in _load(command.environment)().items():
            os.environ.setdefault(variable, value)
    try:
        program: Program = _load(command.target)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("plimsoll_"):
            raise
        print(
            f"plimsoll {name}: the Python package {error.name} is missing: install plimsoll[{command.extra}]",
            file=sys.stderr,
        )
        return 1
    try:
        return program(arguments)
    except KeyboardInterrupt:
        return 130


def _load(target: str) -> Any:
    module_name, _, function_name = target.partition(":")
    return getattr(importlib.import_module(module_name), function_name)


def _unknown(name: str) -> str:
    given = f"{name!r} is not a command" if name else "no command was given"
    return f"plimsoll: {given}; there are: {', '.join(COMMANDS)}"


def _overview() -> str:
    lines = ["usage: plimsoll COMMAND [arguments]", ""]
    lines += [f"  {name:<12} {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join([*lines, "", "plimsoll COMMAND --help explains one."])


if __name__ == "__main__":
    sys.exit(main())
