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
    pytest.param("--scheduling", "random", id="scheduling"),
    pytest.param("--quantum-tokens", "0", id="quantum"),
    pytest.param("--level-thresholds", "512,", id="list-with-a-hole"),
    pytest.param("--level-thresholds", "512;1024", id="list-with-other-marks"),
    pytest.param("--level-weights", "7,many", id="list-with-a-word"),
    pytest.param("--tenant-weights", "1a2b3c4d", id="tenant-without-weight"),
    pytest.param("--tenant-weights", "1a2b3c4d=x", id="tenant-with-a-word"),
    pytest.param("--paused-kv", "4 Gi", id="amount-with-a-space"),
    pytest.param("--paused-kv", "much", id="amount-as-a-word"),
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
        pytest.param([MODEL, "--tenant-weights", "sk-12345678=2"], "'sk-12345678' was given", id="tenant-is-a-key"),
        pytest.param([MODEL, "--level-thresholds", "9,0"], "--level-thresholds: 0 was given", id="entry-out-of-bounds"),
        pytest.param(
            [MODEL, "--level-thresholds=512,1,9", "--scheduling=interactive"],
            "level_thresholds 512 is followed by 1: give increasing token counts in --level-thresholds",
            id="thresholds-fall",
        ),
        pytest.param(
            [MODEL, "--level-thresholds=512,1024"],
            "level_thresholds make 3 levels, but level_weights are for 2",
            id="thresholds-without-weights",
        ),
        pytest.param(
            [MODEL, "--scheduling=fifo", "--quantum-tokens=64"],
            "quantum_tokens 64 means nothing with scheduling fifo: leave out --quantum-tokens",
            id="fifo-with-a-quantum",
        ),
        pytest.param(
            [MODEL, "--fairness=none", "--tenant-weights=1a2b3c4d=3"],
            "tenant_weights 1a2b3c4d=3 means nothing with fairness none",
            id="weights-of-nobody",
        ),
        pytest.param(
            [MODEL, "--tenant-weights=1a2b3c4d=3"],
            "tenant_weights 1a2b3c4d=3 means nothing without API keys: leave out --tenant-weights",
            id="weights-without-keys",
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


def test_lists_amounts_and_words_of_two_parts_are_read() -> None:
    config = read_flags(
        [
            MODEL,
            "--level-thresholds=256,1024",
            "--level-weights=4,2,1",
            "--tenant-weights=1a2b3c4d=3,ffffffff=7",
            "--api-key-file=/keys",
            "--paused-kv=1.5Gi",
            "--fairness=ApiKey",
        ]
    )
    assert config.level_thresholds == (256, 1024)
    assert config.level_weights == (4, 2, 1)
    assert [(each.tenant, each.weight) for each in config.tenant_weights] == [("1a2b3c4d", 3), ("ffffffff", 7)]
    assert config.paused_kv == 3 * 2**29
    assert config.fairness == "api-key"


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
