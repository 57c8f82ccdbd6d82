"""`plimsoll serve`: flags to configuration to service to app. The only place where the runtime is put together.

Owns the composition and nothing else. Exit codes: 0 after a drain, 1 when the server cannot start or its engine died
(one sentence, see contract/last_words.py), 2 for wrong flags.
"""

import asyncio
import functools
import hashlib
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

import torch
import uvloop

from plimsoll_runtime.admission.admit import Admission
from plimsoll_runtime.admission.deadlines import Patience
from plimsoll_runtime.admission.house import House
from plimsoll_runtime.admission.wait_estimate import SlotRules
from plimsoll_runtime.contract.command_line import parse_flags
from plimsoll_runtime.contract.config import RuntimeConfig
from plimsoll_runtime.contract.last_words import StartError, give_up
from plimsoll_runtime.contract.model_source import ModelSourceError, parse_model_source
from plimsoll_runtime.engine.capacity import CapacityPlan
from plimsoll_runtime.engine.engine import Engine
from plimsoll_runtime.engine.expert_plan import NOTHING_TO_OFFLOAD
from plimsoll_runtime.engine.settings import EngineSettings
from plimsoll_runtime.engine.thread import EngineThread
from plimsoll_runtime.lifecycle import listen, run_server, unawaited_at_exit
from plimsoll_runtime.load_metrics import ExpertCollector
from plimsoll_runtime.loading import LoadedModel, load_model, served_name, show_progress
from plimsoll_runtime.meters import Meters
from plimsoll_runtime.routes.app import build_app
from plimsoll_runtime.routes.front import Front
from plimsoll_runtime.routes.response_store import ResponseStore
from plimsoll_runtime.service import Service
from plimsoll_runtime.text.reasoning import ReasoningFormat
from plimsoll_runtime.text.structure.compiler import StructureCompiler
from plimsoll_runtime.text.tool_calls.formats import ToolCallFormat
from plimsoll_runtime.warm_up import warm_up


def serve(arguments: Sequence[str]) -> int:
    """Runs a server until it is told to stop; returns the exit code."""
    config = parse_flags(arguments)
    try:
        parse_model_source(config.model)
    except ModelSourceError as error:
        print(f"plimsoll serve: --model: {error}", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    try:
        front = new_front(config)
        app = build_app(front)
        sock = listen(config.host, config.port)
    except (StartError, ValueError, OSError) as error:
        return give_up("serve", str(error))
    load = functools.partial(
        load_and_announce, front, sock, lambda: load_model(config, show_progress(front.served_name, "loading weights"))
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(run_server(app, front, sock, load, grace_seconds(config)))
    return _leave(code)


def _leave(code: int) -> NoReturn:
    """Ends the process without Python's own end: a thread that still loads or computes in native code would be ended in
    the midst of it, and the process with it, by SIGABRT instead of `code`."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def grace_seconds(config: RuntimeConfig) -> float:
    """How long running requests may finish after SIGTERM."""
    return config.request_timeout if config.drain_seconds is None else config.drain_seconds


def new_front(config: RuntimeConfig) -> Front:
    """A server that answers but has no model yet."""
    return Front(
        config=config,
        served_name=served_name(config),
        revision=_revision(config),
        meters=Meters(),
        store=ResponseStore(time.monotonic),
        wall_clock=time.time,
    )


def new_admission(config: RuntimeConfig, loaded: LoadedModel) -> Admission:
    """The one owner of every limit of this server."""
    return Admission(
        limits=loaded.limits,
        model=loaded.facts,
        encoder=loaded.text,
        patience=Patience(
            config.queue_timeout, config.request_timeout, config.honour_client_deadlines, config.on_deadline
        ),
        sampling_defaults=config.sampling_defaults,
        new_seed=lambda: secrets.randbits(63),
        tenant_weights={each.tenant: each.weight for each in config.tenant_weights},
        stops_runaways=config.runaway == "stop",
        reads_tool_calls=config.tool_call_parser != "none",
        reasoning=new_reasoning(config, loaded),
    )


def new_tool_calls(config: RuntimeConfig, loaded: LoadedModel) -> ToolCallFormat | None:
    """How the model writes tool calls, None where it is not said."""
    name = config.tool_call_parser
    return None if name == "none" else ToolCallFormat(name, loaded.text.tokenizer)


def new_reasoning(config: RuntimeConfig, loaded: LoadedModel) -> ReasoningFormat | None:
    """How the model writes its reasoning, None where it is not said."""
    name = config.reasoning_parser
    return None if name == "none" else ReasoningFormat(name, loaded.text.tokenizer)


def slot_rules(settings: EngineSettings) -> SlotRules:
    """What of the schedule decides how long a newcomer waits."""
    schedule = settings.schedule
    return SlotRules(
        running_slots=settings.running_slots,
        first_threshold=schedule.thresholds[0] if schedule.thresholds else None,
        weights=schedule.weights,
        by_tenant=schedule.by_tenant,
    )


async def start_service(front: Front, loaded: LoadedModel) -> None:
    """Engine, service and first token; the server is ready when this returns."""
    config = front.config
    admission = new_admission(config, loaded)
    service = Service(
        admission=admission,
        text=loaded.text,
        house=House(slot_rules(loaded.settings), config.max_waiting, admission.weight_of),
        meters=front.meters,
        clock=time.monotonic,
        structures=StructureCompiler(loaded.text.tokenizer, loaded.facts.num_tokens, loaded.facts.eos_token_ids),
        tool_calls=new_tool_calls(config, loaded),
        reasoning=new_reasoning(config, loaded),
    )
    engine = Engine(loaded.runner, loaded.settings, time.monotonic, loaded.host)
    await unawaited_at_exit(lambda: warm_up(engine, service.admission))
    thread = EngineThread(engine, service.deliver, service.on_crash)
    service.attach(thread)
    thread.start()
    front.kv_capacity_tokens = loaded.plan.kv_capacity_tokens
    front.kernels = loaded.kernels
    front.offload = loaded.offload
    if loaded.experts is not None:
        front.meters.watch(ExpertCollector(loaded.experts))
    front.service = service


async def load_and_announce(front: Front, sock: socket.socket, load: Callable[[], LoadedModel]) -> None:
    """Loads, starts, and says so on standard error. `load` is slow and may be left behind when the process ends."""
    started = time.monotonic()
    host, port = sock.getsockname()[:2]
    print(f"plimsoll serve: {front.served_name} on http://{host}:{port}, loading", file=sys.stderr, flush=True)
    loaded = await unawaited_at_exit(load)
    await start_service(front, loaded)
    limits = loaded.limits
    hard_limit = "none" if limits.max_output_limit is None else f"{limits.max_output_limit:,}"
    print(
        f"plimsoll serve: {front.served_name} on http://{host}:{port} is ready after "
        f"{time.monotonic() - started:.1f} s: context {limits.context_length:,}, output default "
        f"{limits.max_output_default:,}, limit {hard_limit}, over budget {limits.over_budget}, slots "
        f"{front.config.running_slots}, KV {loaded.plan.kv_capacity_tokens:,} tokens, {_states(loaded.plan)}"
        f"{_experts(loaded)}{torch.get_num_threads()} threads, kernels {' '.join(map(str, loaded.kernels.values()))}",
        file=sys.stderr,
        flush=True,
    )


def _states(plan: CapacityPlan) -> str:
    """What a model keeps besides keys and values, with its budget."""
    facts = plan.facts
    return f"{facts.num_states:,} states of {facts.state_bytes:,} bytes, " if facts.num_states else ""


def _experts(loaded: LoadedModel) -> str:
    """Where a mixture's experts are, and why."""
    cache, reason = loaded.experts, loaded.offload["reason"]
    if cache is None:
        return "" if reason == NOTHING_TO_OFFLOAD else f"all experts in memory ({reason}), "
    return (
        f"experts on disk with {cache.num_slots:,} of {cache.num_experts:,} in {cache.num_bytes:,} bytes of memory "
        f"({reason}), "
    )


def _revision(config: RuntimeConfig) -> str:
    """A hash of everything that decides what this server answers; host, port and key file do not."""
    text = config.model_dump_json(exclude={"host", "port", "api_key_file"})
    return hashlib.sha256(text.encode()).hexdigest()[:12]


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(serve(words[1:] if words[:1] == ["serve"] else words))
