"""From flags to a server whose experts are on disk: the pack, the plan, what the server says of itself."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from doubles.server import wait_until
from models.tiny_models import build, save_folder
from plimsoll_runtime.contract import endpoints
from plimsoll_runtime.contract.config import RuntimeConfig
from plimsoll_runtime.contract.last_words import StartError
from plimsoll_runtime.loading import LoadedModel, load_model
from plimsoll_runtime.pack_experts import main as pack_command
from text.folders import CHATML
from text.folders import save_folder as save_tokenizer

NUM_EXPERTS = 3 * 8
PROMPT = "Keys and values come first."


@pytest.fixture(autouse=True)
def _same_threads() -> Iterator[None]:
    """Loading sets as many as there are cores."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_folder(build("qwen3_moe", vocab_size=1024), tmp_path_factory.mktemp("models") / "tiny")
    save_tokenizer(folder, CHATML)
    return folder


def loaded(model: Path, **settings: Any) -> LoadedModel:
    values = {"model": f"file://{model}", "device": "cpu", "context_length": 64, **settings}
    return load_model(RuntimeConfig(**values), lambda done, total: None)


def slot_bytes(model: Path) -> int:
    found = loaded(model, offload="experts").experts
    assert found is not None
    assert found.num_bytes % found.num_slots == 0
    return found.num_bytes // found.num_slots


# B41: an explicit size was ignored under one of the strategies.
def test_the_cache_has_the_size_that_was_set_and_nothing_is_read_twice(model: Path) -> None:
    size = slot_bytes(model)
    for mode in ("experts", "auto"):
        found = loaded(model, offload=mode, expert_cache=5 * size + 1)
        assert found.experts is not None
        assert (found.experts.num_slots, found.experts.num_bytes) == (5, 5 * size)
        assert found.offload["expert_slots"] == 5
        assert found.plan.facts.expert_bytes == 5 * size
    resident, cached = loaded(model), loaded(model, offload="experts", expert_cache=5 * size)
    assert resident.plan.facts.weight_bytes - cached.plan.facts.weight_bytes == NUM_EXPERTS * 3 * 32 * 64 * 4


def test_auto_keeps_what_fits_in_memory(model: Path) -> None:
    found = loaded(model, offload="auto")
    assert found.experts is None
    assert found.offload == {"mode": "none", "reason": "all experts fit beside keys and values"}


@pytest.mark.parametrize("num_experts", [0, 1, NUM_EXPERTS + 1])
def test_a_size_that_cannot_be_is_refused_before_anything_is_packed(
    model: Path, tmp_path: Path, num_experts: int
) -> None:
    moved = tmp_path / "model"
    moved.symlink_to(model)
    size = slot_bytes(model)
    with pytest.raises(StartError, match=rf"^expert_cache [0-9,]+ bytes holds {num_experts} experts of "):
        loaded(moved, offload="experts", expert_cache=num_experts * size)


def test_where_nothing_beside_the_model_can_be_written_the_cache_folder_takes_the_pack(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded(model, offload="experts")
    beside = model.with_name("tiny.experts")
    assert list(beside.glob("*/index.json"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    hidden = beside.rename(tmp_path / "hidden")
    try:
        access = os.access
        monkeypatch.setattr(os, "access", lambda path, kind: access(path, kind) and Path(path) != model.parent)
        loaded(model, offload="experts")
        assert not beside.exists()
        assert len(list(tmp_path.glob("plimsoll/experts/tiny-*/*/index.json"))) == 1
    finally:
        hidden.rename(beside)


def test_the_command_packs_checks_and_repairs(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pack_command([str(model)]) == 0
    said = capsys.readouterr().out
    assert re.match(rf".*tiny\.experts/[0-9a-f]{{8}}: {NUM_EXPERTS} experts, [0-9,]+ bytes, all checked, in ", said)
    [shard] = model.with_name("tiny.experts").glob("*/experts-00000.bin")
    whole = shard.read_bytes()
    shard.write_bytes(whole[:5000] + b"damaged" + whole[5007:])
    assert pack_command([str(model)]) == 0
    assert shard.read_bytes() == whole


def test_the_command_says_when_there_is_nothing_to_pack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_folder(build("qwen3"), tmp_path / "dense")
    assert pack_command([str(folder)]) == 1
    assert f"plimsoll pack: {folder}: the model has no experts" in capsys.readouterr().err
    assert pack_command([str(tmp_path / "nowhere")]) == 1


def test_a_whole_server(model: Path) -> None:
    """Its answer is the resident model's; the budget, the metrics and the start log say where experts are."""
    size = slot_bytes(model)
    flags = ["--offload", "experts", "--expert-cache", str(4 * size)]
    answer, _, _, _ = ask_server(model, [])
    found, budget, metrics, log = ask_server(model, flags)
    assert found == answer
    assert budget["offload"] == {
        "mode": "experts",
        "reason": "expert_cache as configured",
        "expert_slots": 4,
        "experts": NUM_EXPERTS,
        "expert_cache_bytes": 4 * size,
    }
    assert (
        f"experts on disk with 4 of {NUM_EXPERTS} in {4 * size:,} bytes of memory (expert_cache as configured)" in log
    )
    counted = {line.split()[0]: float(line.split()[1]) for line in metrics.splitlines() if line[:1] != "#"}
    assert counted['plimsoll_expert_slots{state="used"}'] == 4
    assert counted['plimsoll_expert_uses_total{result="miss"}'] > 0
    assert counted["plimsoll_expert_bytes_total"] % size == 0
    assert counted["plimsoll_expert_bytes_total"] > 0
    assert counted["plimsoll_expert_wait_seconds_total"] > 0


def ask_server(model: Path, flags: list[str]) -> tuple[str, dict[str, Any], str, str]:
    """An answer, the budget, the metrics and the log of a process."""
    command = [
        sys.executable,
        "-m",
        "plimsoll_runtime.contract.commands",
        "serve",
        "--model",
        str(model),
        "--port",
        "0",
    ]
    command += ["--context-length", "64", "--device", "cpu", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        log = process.stderr.readline()
        try:
            address = re.findall(r"http://[0-9.:]+", log)
            assert address, log
            with httpx.Client(base_url=address[0], timeout=30) as client:
                wait_until(lambda: client.get(endpoints.READYZ).status_code == 200, 60)
                body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
                answer = client.post(endpoints.COMPLETIONS, json=body).json()["choices"][0]["text"]
                budget, metrics = client.get(endpoints.BUDGET).json(), client.get(endpoints.METRICS).text
        finally:
            process.terminate()
        return answer, budget, metrics, log + process.stderr.read()
