"""llama.cpp's own programs: the yardstick of `make bench-cpu`.

Owns where they are found (the folder in `LLAMA_CPP_BIN`) and how they are asked. `LlamaPrograms` measures without HTTP,
which is in llama.cpp's favour: our side pays for HTTP and text in every figure. `llama_server` is its server, an
`Engine` like ours. Weights, threads and the number of cache tokens are those that our server gets.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from server import ServedEngine, free_port

VARIABLE = "LLAMA_CPP_BIN"
_NAMES = ("llama-bench", "llama-batched-bench", "llama-server")
_ROOM_TOKENS = 64


def find_programs(environment: Mapping[str, str]) -> Path | str:
    """The folder of the programs, or why there is none."""
    given = environment.get(VARIABLE, "")
    if not given:
        return f"{VARIABLE} is not set: set it to the folder of {', '.join(_NAMES)} (docs/benchmarks/cpu.md)"
    absent = [name for name in _NAMES if not os.access(Path(given, name), os.X_OK)]
    return f"{VARIABLE}={given} has no {', no '.join(absent)}" if absent else Path(given)


class LlamaPrograms:
    """Rates in tokens per second, each from a process of its own."""

    def __init__(self, folder: Path, model: Path, num_threads: int) -> None:
        self.folder = folder
        self.model = model
        self.num_threads = num_threads

    def prefill_rate(self, prompt_tokens: int) -> float:
        return self._bench("-p", str(prompt_tokens), "-n", "0")

    def decode_rate(self, output_tokens: int, depth_tokens: int = 0) -> float:
        """One sequence that begins after `depth_tokens` of context."""
        return self._bench("-p", "0", "-n", str(output_tokens), "-d", str(depth_tokens))

    def together_rates(self, numbers: Sequence[int], prompt_tokens: int, output_tokens: int) -> dict[int, float]:
        """So many sequences in one batch: all their output tokens per second of decoding."""
        most = max(numbers) * (prompt_tokens + output_tokens + _ROOM_TOKENS)
        output = self._run(
            "llama-batched-bench",
            *("-c", str(most), "-npp", str(prompt_tokens), "-ntg", str(output_tokens)),
            *("-npl", ",".join(map(str, numbers)), "-tb", str(self.num_threads), "--output-format", "jsonl"),
        )
        rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        return {row["pl"]: float(row["speed_tg"]) for row in rows}

    def server(self, slots: int, cache_tokens: int) -> ServedEngine:
        """`llama-server`; prompt cache and continuous batching are on by default there."""
        port = free_port()
        command = [
            *(str(self.folder / "llama-server"), "-m", str(self.model)),
            *("-t", str(self.num_threads), "-tb", str(self.num_threads)),
            *("-np", str(slots), "-c", str(cache_tokens)),
            *("--host", "127.0.0.1", "--port", str(port), "--no-webui", "--offline", "--log-disable"),
        ]
        return ServedEngine("llama.cpp", "yardstick", command, f"http://127.0.0.1:{port}", "/health")

    def _bench(self, *arguments: str) -> float:
        [result] = json.loads(self._run("llama-bench", "-r", "1", "-o", "json", *arguments))
        return float(result["avg_ts"])

    def _run(self, program: str, *arguments: str) -> str:
        command = [str(self.folder / program), "-m", str(self.model), "-t", str(self.num_threads), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{program} ended with {done.returncode}: {done.stderr[-500:]}")
        return done.stdout
