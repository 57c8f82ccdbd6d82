"""The one command: programs are found by name, what is missing is a sentence."""

import importlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from plimsoll_runtime.contract import commands


def test_a_command_gets_its_arguments_and_gives_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Sequence[str]] = []

    def serve(arguments: Sequence[str]) -> int:
        seen.append(arguments)
        return 3

    monkeypatch.setattr(importlib, "import_module", lambda name: SimpleNamespace(serve=serve))
    assert commands.main(["serve", "--port", "1"]) == 3
    assert seen == [["--port", "1"]]


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_every_command_names_a_module_of_ours(name: str) -> None:
    module, _, function = commands.COMMANDS[name].target.partition(":")
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    assert f"\ndef {function}(" in Path(spec.origin).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "no command was given"),
        (["serv"], "'serv' is not a command"),
        (["--version"], "'--version' is not a command"),
    ],
)
def test_what_is_not_a_command_is_refused_with_the_list(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main(words) == 2
    message = capsys.readouterr().err
    assert expected in message
    assert "serve, up, budget, plan, generate" in message


def test_a_missing_package_is_a_sentence_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def import_module(name: str) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(importlib, "import_module", import_module)
    assert commands.main(["serve"]) == 1
    assert "torch is missing: install plimsoll[runtime]" in capsys.readouterr().err
