"""How each figure of `make bench-cpu` is measured: stages, each of which measures one side of some figures.

Owns the workloads. Ours is always the whole server over HTTP; llama.cpp's rates are its own programs', its makespan and
memory its server's. Prompts are fresh random tokens in every round, so that no cache answers but the one that is meant.
Stages that are compared with each other stand next to each other in `STAGES`.
"""

import json
import random
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from clients import request_seconds, requests_per_second
from cpu_figures import AT_100, AT_4000, BARE, LLAMA, OURS, TRANSFORMERS
from llama_programs import LlamaPrograms
from overhead_app import BODY, NUM_CONNECTIONS
from plimsoll_runtime.contract.config import RuntimeConfig
from server import OverheadServer, PlimsollServer, ServedEngine, free_port
from timing import Engine, StreamTiming, decode_rate, main_thread_seconds, resident_bytes
from yardsticks import Yardstick

PROMPT_TOKENS, LONG_PROMPT_TOKENS, OUTPUT_TOKENS = 32, 512, 64
SHARED_REQUESTS, SHARED_TOKENS, OWN_TOKENS, SHARED_OUTPUT_TOKENS = 32, 1000, 16, 32
SLOTS, WIDE_SLOTS = 8, 16
CACHE_TOKENS, CONTEXT_TOKENS = 16_384, 2048
SHORT_DEPTH_TOKENS, LONG_DEPTH_TOKENS, WINDOW_TOKENS = 100, 4000, 8192
OVERHEAD_REQUESTS, LATENCY_REQUESTS = 6_400, 1_000
ORDINARY_TOKENS = range(100, 40_000)
"""Token ids of this model's vocabulary that are neither control tokens nor padding."""


@dataclass(frozen=True)
class Scene:
    """What stages measure with. `record(figure, column, value)` takes one value; `draw` is new in every round."""

    model: str
    path: Path
    programs: LlamaPrograms | None
    wanted: frozenset[str]
    draw: random.Random
    record: Callable[[str, str, float], None]

    def wants(self, *figures: str) -> bool:
        return any(figure in self.wanted for figure in figures)

    def prompts(self, count: int, num_tokens: int) -> list[list[int]]:
        return [self.draw.choices(ORDINARY_TOKENS, k=num_tokens) for _ in range(count)]

    def streamed(self, engine: Engine, count: int, num_tokens: int) -> list[StreamTiming]:
        return engine.stream(self.prompts(count, PROMPT_TOKENS), num_tokens)


@dataclass(frozen=True)
class Stage:
    """One side of some figures. `needs_programs`: nothing is measured without llama.cpp's programs."""

    name: str
    figures: tuple[str, ...]
    measure: Callable[[Scene], None]
    needs_programs: bool = False


def measure_ours(scene: Scene) -> None:
    """One server with 8 slots: everything that is compared with fewer than 16 sequences."""
    with _plimsoll(scene, slots=SLOTS, context=CONTEXT_TOKENS, cache=CACHE_TOKENS) as server:
        scene.record("start", OURS, server.start_seconds)
        scene.streamed(server, 1, 4)  # the first answer pays for what is made lazily
        scene.record("single", OURS, decode_rate(scene.streamed(server, 1, 2 * OUTPUT_TOKENS)))
        if scene.wants("prefill"):
            _measure_prefill(scene, server)
        if scene.wants("streams-8", "transformers", "loop-share", "memory"):
            _measure_eight(scene, server)
        if scene.wants("shared-prefix"):
            scene.record("shared-prefix", OURS, _shared_prefix_seconds(scene, server))


def measure_llama_bench(scene: Scene) -> None:
    assert scene.programs is not None
    if scene.wants("single"):
        scene.record("single", LLAMA, scene.programs.decode_rate(2 * OUTPUT_TOKENS))
    if scene.wants("prefill"):
        scene.record("prefill", LLAMA, scene.programs.prefill_rate(LONG_PROMPT_TOKENS))


def measure_llama_together(scene: Scene) -> None:
    assert scene.programs is not None
    numbers = [count for count, key in ((SLOTS, "streams-8"), (WIDE_SLOTS, "streams-16")) if scene.wants(key)]
    for count, rate in scene.programs.together_rates(numbers, PROMPT_TOKENS, OUTPUT_TOKENS).items():
        scene.record(f"streams-{count}", LLAMA, rate)


def measure_llama_server(scene: Scene) -> None:
    """With as many slots and cache tokens as ours; every slot keeps what it computed last, as it does by default."""
    assert scene.programs is not None
    with _running(scene.programs.server(SLOTS, CACHE_TOKENS)) as server:
        scene.streamed(server, SLOTS, OUTPUT_TOKENS)
        scene.record("memory", LLAMA, resident_bytes(server.process_id) / 1e6)
        if scene.wants("shared-prefix"):
            scene.record("shared-prefix", LLAMA, _shared_prefix_seconds(scene, server))


def measure_transformers(scene: Scene) -> None:
    engine = Yardstick(TRANSFORMERS, scene.path)
    try:
        scene.streamed(engine, SLOTS, 4)
        scene.record("transformers", TRANSFORMERS, decode_rate(scene.streamed(engine, SLOTS, OUTPUT_TOKENS)))
    finally:
        engine.stop()


def measure_wide(scene: Scene) -> None:
    with _plimsoll(scene, slots=WIDE_SLOTS, context=CONTEXT_TOKENS, cache=CACHE_TOKENS) as server:
        scene.streamed(server, WIDE_SLOTS, 4)
        scene.record("streams-16", OURS, decode_rate(scene.streamed(server, WIDE_SLOTS, OUTPUT_TOKENS)))


def measure_long_context(scene: Scene) -> None:
    """The model's window is 8,192 tokens, so 4,000 are honest."""
    with _plimsoll(scene, slots=1, context=WINDOW_TOKENS, cache=WINDOW_TOKENS) as server:
        scene.streamed(server, 1, 4)
        rates = {}
        for column, depth in ((AT_100, SHORT_DEPTH_TOKENS), (AT_4000, LONG_DEPTH_TOKENS)):
            rates[depth] = decode_rate(server.stream(scene.prompts(1, depth), OUTPUT_TOKENS))
            scene.record("long-context", column, rates[depth])
        scene.record("long-context", OURS, rates[LONG_DEPTH_TOKENS] / rates[SHORT_DEPTH_TOKENS])


def measure_llama_long_context(scene: Scene) -> None:
    assert scene.programs is not None
    long = scene.programs.decode_rate(OUTPUT_TOKENS, LONG_DEPTH_TOKENS)
    short = scene.programs.decode_rate(OUTPUT_TOKENS, SHORT_DEPTH_TOKENS)
    scene.record("long-context", LLAMA, long / short)


def measure_small(scene: Scene) -> None:
    with _plimsoll(scene, slots=1, context=CONTEXT_TOKENS, cache=CONTEXT_TOKENS) as server:
        scene.streamed(server, 1, OUTPUT_TOKENS)
        scene.record("memory-small", OURS, resident_bytes(server.process_id) / 1e6)


def measure_llama_small(scene: Scene) -> None:
    assert scene.programs is not None
    with _running(scene.programs.server(1, CONTEXT_TOKENS)) as server:
        scene.streamed(server, 1, OUTPUT_TOKENS)
        scene.record("memory-small", LLAMA, resident_bytes(server.process_id) / 1e6)


def measure_http(scene: Scene) -> None:
    """The whole server over a scripted model, and a FastAPI route that answers with a constant."""
    body = json.dumps(BODY).encode()
    medians = {}
    for program, column in (("plimsoll", OURS), ("bare", BARE)):
        server = OverheadServer(program)
        try:
            rate = uvloop.run(requests_per_second(server.url, body, NUM_CONNECTIONS, OVERHEAD_REQUESTS))
            medians[column] = statistics.median(uvloop.run(request_seconds(server.url, body, LATENCY_REQUESTS)))
        finally:
            server.stop()
        scene.record("http-rate", column, rate)
    scene.record("http-latency", OURS, (medians[OURS] - medians[BARE]) * 1e3)
    scene.record("http-latency", BARE, medians[BARE] * 1e3)


STAGES = (
    Stage(
        "plimsoll, 8 slots",
        ("start", "single", "prefill", "streams-8", "transformers", "loop-share", "memory", "shared-prefix"),
        measure_ours,
    ),
    Stage("llama-bench", ("single", "prefill"), measure_llama_bench, True),
    Stage("llama-batched-bench", ("streams-8", "streams-16"), measure_llama_together, True),
    Stage("plimsoll, 16 slots", ("streams-16",), measure_wide),
    Stage("llama-server, 8 slots", ("memory", "shared-prefix"), measure_llama_server, True),
    Stage("transformers", ("transformers",), measure_transformers),
    Stage("plimsoll, long context", ("long-context",), measure_long_context),
    Stage("llama-bench, long context", ("long-context",), measure_llama_long_context, True),
    Stage("plimsoll, one slot", ("memory-small",), measure_small),
    Stage("llama-server, one slot", ("memory-small",), measure_llama_small, True),
    Stage("HTTP over a scripted model", ("http-rate", "http-latency"), measure_http),
)


def _measure_prefill(scene: Scene, server: ServedEngine) -> None:
    [long] = server.stream(scene.prompts(1, LONG_PROMPT_TOKENS), 1)
    scene.record("prefill", OURS, LONG_PROMPT_TOKENS / long.first_seconds)


def _measure_eight(scene: Scene, server: ServedEngine) -> None:
    loop_before = main_thread_seconds(server.process_id)
    timings = scene.streamed(server, SLOTS, OUTPUT_TOKENS)
    loop_seconds = main_thread_seconds(server.process_id) - loop_before
    rate = decode_rate(timings)
    scene.record("streams-8", OURS, rate)
    scene.record("transformers", OURS, rate)
    scene.record("loop-share", OURS, 100 * loop_seconds / max(timing.last_seconds for timing in timings))
    scene.record("memory", OURS, resident_bytes(server.process_id) / 1e6)


def _shared_prefix_seconds(scene: Scene, server: Engine) -> float:
    """From sending all requests at once to the last token of the last."""
    [prefix] = scene.prompts(1, SHARED_TOKENS)
    prompts = [prefix + own for own in scene.prompts(SHARED_REQUESTS, OWN_TOKENS)]
    return max(timing.last_seconds for timing in server.stream(prompts, SHARED_OUTPUT_TOKENS))


@contextmanager
def _plimsoll(scene: Scene, *, slots: int, context: int, cache: int) -> Iterator[ServedEngine]:
    config = RuntimeConfig(
        model=scene.model,
        served_model_name="smollm2",
        context_length=context,
        kv_cache_tokens=cache,
        running_slots=slots,
        port=free_port(),
    )
    with _running(PlimsollServer(config)) as server:
        yield server


@contextmanager
def _running(server: ServedEngine) -> Iterator[ServedEngine]:
    try:
        yield server
    finally:
        server.stop()
