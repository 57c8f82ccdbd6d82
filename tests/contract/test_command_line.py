"""`plimsoll serve` reads its flags exactly, and a wrong one is a sentence."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from plimsoll_runtime.contract.command_line import FlagError, parse_flags, read_flags, render_flags
from plimsoll_runtime.contract.config import RuntimeConfig

MODEL = "--model=package://p/f.gguf"

WRONG_VALUES = [
    # B18: a context length of 0 was accepted, and the scheduler ran with negative counts.
    pytest.param("--context-length", "0", id="B18-context-zero"),
    pytest.param("--context-length", "-1", id="B18-context-negative"),
    pytest.param("--context-length", "4k", id="B18-context-word"),
    pytest.param("--context-length", "4096.0", id="B18-context-fraction"),
    pytest.param("--context-length", "1_000", id="B18-context-underscore"),
    pytest.param("--context-length", "٤", id="B18-context-other-digits"),
    pytest.param("--context-length", "2147483648", id="B18-context-huge"),
    pytest.param("--context-length", "9" * 5000, id="B18-context-many-digits"),
    pytest.param("--max-output-default", "0", id="B18-default-zero"),
    pytest.param("--max-output-limit", "0", id="B18-limit-zero"),
    pytest.param("--running-slots", "0", id="B18-slots-zero"),
    pytest.param("--running-slots", "4097", id="B18-slots-many"),
    pytest.param("--max-waiting", "-1", id="B18-waiting-negative"),
    pytest.param("--queue-timeout", "0", id="timeout-zero"),
    pytest.param("--queue-timeout", "nan", id="timeout-nan"),
    pytest.param("--queue-timeout", "inf", id="timeout-infinite"),
    pytest.param("--queue-timeout", "1e999", id="timeout-overflow"),
    pytest.param("--queue-timeout", "2m", id="timeout-with-unit"),
    pytest.param("--over-budget", "drop", id="word"),
    pytest.param("--dtype", "int8", id="dtype"),
    pytest.param("--port", "65536", id="port"),
    pytest.param("--served-model-name", "", id="empty"),
]


@pytest.mark.parametrize(("flag", "value"), WRONG_VALUES)
def test_a_wrong_value_is_refused_with_flag_value_and_what_is_allowed(flag: str, value: str) -> None:
    with pytest.raises(FlagError) as fault:
        read_flags([MODEL, flag, value])
    sentence = str(fault.value)
    assert sentence.startswith(f"{flag}: ")
    assert value in sentence
    assert "allowed is" in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param([], "--model: required", id="no-model"),
        pytest.param([MODEL, "--port"], "--port: no value was given", id="no-value"),
        pytest.param(["--model", "--port", "3"], "--model: no value was given", id="flag-instead-of-value"),
        pytest.param([MODEL, "--contxt-length", "9"], "did you mean --context-length?", id="misspelt"),
        pytest.param([MODEL, "--context", "9"], "--context is not a flag", id="abbreviated"),
        pytest.param([MODEL, "model.gguf"], "'model.gguf' was given without a flag", id="positional"),
        pytest.param([MODEL, "--prefix-caching=yes"], "a switch takes no value", id="switch-with-value"),
        pytest.param(
            [MODEL, "--context-length", "64", "--max-output-default", "64"],
            "max_output_default 64 leaves no room for a prompt within context_length 64",
            id="conflict",
        ),
    ],
)
def test_a_wrong_command_line_is_refused_with_a_sentence(arguments: list[str], expected: str) -> None:
    with pytest.raises(FlagError) as fault:
        read_flags(arguments)
    assert expected in str(fault.value)


def test_flags_mean_their_settings() -> None:
    config = read_flags([MODEL, "--context-length", "64", "--over-budget", "REFUSE", "--no-prefix-caching"])
    assert config == RuntimeConfig(
        model="package://p/f.gguf", context_length=64, over_budget="refuse", prefix_caching=False
    )


def test_only_what_differs_from_the_default_is_rendered() -> None:
    config = RuntimeConfig(model="/m", queue_timeout=120, request_timeout=1.5, running_slots=5)
    assert render_flags(config) == ["--model=/m", "--running-slots=5", "--request-timeout=1.5"]


def test_a_wrong_flag_ends_the_program_with_2_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse_flags([MODEL, "--running-slots=0"])
    assert end.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_help_is_complete(capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]) -> None:
    with pytest.raises(SystemExit) as end:
        parse_flags(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    for name in RuntimeConfig.model_fields:
        assert f"--{name.replace('_', '-')}" in text
    assert text.count("default: ") == len(RuntimeConfig.model_fields)
    golden("flags_help.txt", text)


def test_the_contract_imports_without_torch() -> None:
    """An operator's image holds no torch; one import of it anywhere in the contract would keep it from starting."""
    program = (
        "import sys, pkgutil, importlib\n"
        "for name in ('torch', 'fastapi', 'uvicorn', 'tokenizers', 'numpy', 'prometheus_client'):\n"
        "    sys.modules[name] = None\n"
        "import plimsoll_runtime.contract as contract\n"
        "import plimsoll_runtime.ask_budget\n"
        "for module in pkgutil.iter_modules(contract.__path__):\n"
        "    importlib.import_module(f'{contract.__name__}.{module.name}')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
