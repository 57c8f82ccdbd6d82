"""The one command: programs are found by name, what is missing is a sentence."""

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from plimsoll_runtime.contract import commands
from plimsoll_runtime.kernels import native


def test_a_command_gets_its_arguments_and_gives_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Sequence[str]] = []

    def fetch(arguments: Sequence[str]) -> int:
        seen.append(arguments)
        return 3

    monkeypatch.setattr(importlib, "import_module", lambda name: SimpleNamespace(main=fetch))
    assert commands.main(["fetch", "--port", "1"]) == 3
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
    assert ", ".join(commands.COMMANDS) in message


def test_a_missing_package_is_a_sentence_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def import_module(name: str) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(importlib, "import_module", import_module)
    assert commands.main(["fetch"]) == 1
    assert "torch is missing: install plimsoll[fetch]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        pytest.param(["--help"], 0, "--context-length", id="help"),
        pytest.param(["--model=file:///x", "--prot=1"], 2, "--prot", id="misspelt"),
        pytest.param(["--model=file:///x", "--port=x"], 2, "--port", id="wrong-value"),
    ],
)
def test_help_and_wrong_flags_of_serve_do_not_wait_for_torch(words: list[str], code: int, expected: str) -> None:
    """Before, `plimsoll serve --help` imported the whole runtime first: 2 seconds for a page of text."""
    program = (
        "import sys\n"
        "for name in ('torch', 'fastapi', 'uvicorn'):\n"
        "    sys.modules[name] = None\n"
        "from plimsoll_runtime.contract.commands import main\n"
        f"sys.exit(main(['serve', *{words!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, expected in done.stdout + done.stderr) == (code, True), done.stderr


@pytest.mark.parametrize(
    ("has_library", "already", "seen"), [(True, None, "passive"), (True, "active", "active"), (False, None, None)]
)
def test_torch_is_told_not_to_spin_before_it_is_imported(
    has_library: bool, already: str | None, seen: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "")  # so that it is put back
    monkeypatch.delenv("OMP_WAIT_POLICY")
    if already is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", already)
    library = tmp_path / "library.so"
    monkeypatch.setattr(native, "LIBRARY_PATH", library)
    if has_library:
        library.touch()
    found: list[str | None] = []

    def import_module(name: str) -> object:
        if name == "plimsoll_runtime.__main__":
            found.append(os.environ.get("OMP_WAIT_POLICY"))
        return SimpleNamespace(
            serve=lambda arguments: 0, parse_flags=lambda arguments: None, thread_environment=native.thread_environment
        )

    monkeypatch.setattr(importlib, "import_module", import_module)
    assert commands.main(["serve", "--model=file:///x"]) == 0
    assert found == [seen]


SLOW_IMPORT = """
import pathlib, sys, types
sys.argv = ["plimsoll", "serve", "--model=file:///x"]
if IS_PROCESS_1:
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what a container's process 1 begins with, as far as it can be had

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            import time
            print("importing", flush=True)
            time.sleep(60)

sys.meta_path.insert(0, Slow())
from plimsoll_runtime.contract.commands import main
sys.exit(main())
"""


@pytest.mark.parametrize("is_process_1", [True, False])
def test_sigterm_ends_a_server_that_is_still_being_imported(is_process_1: bool) -> None:
    """Before, process 1 of a container ignored SIGTERM until it listened: a pod deleted early took its whole grace."""
    program = f"IS_PROCESS_1 = {is_process_1}\n{SLOW_IMPORT}"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM
