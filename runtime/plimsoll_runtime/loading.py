"""From a configuration to a model that can answer: the order in which a server gets ready.

Owns the order: find the files, read headers, read the text side, plan the memory, load weights, make the engine's
parts. In: a `RuntimeConfig`. Out: a `LoadedModel`, or a `StartError` with one sentence. It starts no thread and opens
no socket. Invariant: the plan is computed and refused before any weight is read.
"""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from plimsoll_runtime.admission.admit import ServedModel
from plimsoll_runtime.contract.config import DEFAULT_MAX_OUTPUT_TOKENS, Limits, RuntimeConfig, field_names
from plimsoll_runtime.contract.last_words import StartError
from plimsoll_runtime.contract.model_source import (
    ModelSourceError,
    default_served_name,
    parse_model_source,
    resolve_model_path,
)
from plimsoll_runtime.engine.capacity import (
    CapacityError,
    CapacityPlan,
    MemoryFacts,
    plan_capacity,
    step_transient_bytes,
)
from plimsoll_runtime.engine.host_cores import usable_cores
from plimsoll_runtime.engine.host_kv import HostKV, KVStore
from plimsoll_runtime.engine.host_memory import available_bytes
from plimsoll_runtime.engine.kv_cache import allocate_cache, kv_bytes_per_token, state_bytes
from plimsoll_runtime.engine.runner import ModelRunner, Runner
from plimsoll_runtime.engine.settings import (
    DEFAULT_PAGE_SIZE,
    DEFAULT_STEP_TOKENS,
    LOGITS_ROWS,
    EngineSettings,
    make_schedule,
    step_budget_tokens,
)
from plimsoll_runtime.kernels.native_library import KernelChoice, choose_kernels
from plimsoll_runtime.models.architecture import GatedDelta
from plimsoll_runtime.models.decoder import Progress, load_decoder
from plimsoll_runtime.models.native_decoder import NATIVE_CACHE_DTYPE, NativeDecoder, fits_library, native_head_elements
from plimsoll_runtime.models.weights.checkpoint import Checkpoint, open_checkpoint
from plimsoll_runtime.models.weights.errors import CheckpointError
from plimsoll_runtime.text.errors import TemplateError, TokenizerError
from plimsoll_runtime.text.model_text import ModelText, load_from_folder, load_from_gguf


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Everything a service is made of, before any thread runs. `kernels` says what computes, and why."""

    text: ModelText
    facts: ServedModel
    limits: Limits
    plan: CapacityPlan
    settings: EngineSettings
    runner: Runner
    host: KVStore
    kernels: Mapping[str, str | int]


def served_name(config: RuntimeConfig) -> str:
    """The name that requests must give. Raises StartError for a source that cannot be read."""
    try:
        return config.served_model_name or default_served_name(parse_model_source(config.model))
    except ModelSourceError as error:
        raise StartError(str(error)) from None


def load_model(config: RuntimeConfig, progress: Progress) -> LoadedModel:
    """Slow: runs off the event loop. Raises StartError with one sentence."""
    try:
        return _load(config, progress)
    except (ModelSourceError, CheckpointError, TokenizerError, TemplateError, CapacityError) as error:
        raise StartError(str(error)) from None


def _load(config: RuntimeConfig, progress: Progress) -> LoadedModel:
    device, dtype = _device(config), _dtype(config)
    torch.set_num_threads(usable_cores())
    checkpoint = open_checkpoint(resolve_model_path(parse_model_source(config.model)))
    kernels = _choose_kernels(config, device, checkpoint)
    text = _load_text(checkpoint)
    computes_natively = kernels.native is not None and fits_library(
        checkpoint.architecture, checkpoint.weights.layer_storages, dtype, DEFAULT_PAGE_SIZE
    )
    cache_dtype = NATIVE_CACHE_DTYPE if computes_natively else dtype
    head_dim = checkpoint.architecture.head_dim
    head_elements = native_head_elements(head_dim) if computes_natively else head_dim
    plan = _plan(config, checkpoint, device, cache_dtype, head_elements)
    limits = _limits(config, plan)
    decoder = load_decoder(checkpoint, device, dtype, progress, kernels.native)
    model = NativeDecoder(decoder, kernels.native) if computes_natively and kernels.native is not None else decoder
    cache = allocate_cache(
        checkpoint.architecture,
        head_elements=head_elements,
        num_pages=plan.num_pages,
        page_size=plan.page_size,
        num_states=plan.facts.num_states,
        dtype=cache_dtype,
        device=device,
    )
    return LoadedModel(
        text=text,
        facts=ServedModel(
            name=served_name(config),
            num_tokens=text.num_usable_tokens,
            eos_token_ids=text.tokenizer.eos_token_ids | checkpoint.eos_token_ids,
            generation_defaults=checkpoint.generation_defaults,
        ),
        limits=limits,
        plan=plan,
        settings=EngineSettings(
            running_slots=config.running_slots,
            context_length=plan.context_length,
            num_pages=plan.num_pages,
            num_tokens=text.num_usable_tokens,
            page_size=plan.page_size,
            prefix_caching=config.prefix_caching,
            schedule=make_schedule(config, limits.max_output_default),
            host_pages=plan.host_pages,
            num_states=plan.facts.num_states,
            state_pages=plan.state_pages,
            detects_runaways=config.runaway != "off",
        ),
        runner=ModelRunner(model, cache, plan.page_size, device),
        host=HostKV(cache, plan.page_size),
        kernels=kernels.facts(whole_layers=computes_natively),
    )


def _choose_kernels(config: RuntimeConfig, device: torch.device, checkpoint: Checkpoint) -> KernelChoice:
    """The native kernels round what the layers hand on, and keys and values, to 8 bits: only for auto."""
    if config.dtype != "auto":
        return KernelChoice(None, f"{field_names('dtype')} is {config.dtype}; the native kernels need auto")
    return choose_kernels(device, usable_cores(), checkpoint.weights.layer_storages)


def _limits(config: RuntimeConfig, plan: CapacityPlan) -> Limits:
    default = config.max_output_default
    return Limits(
        context_length=plan.context_length,
        max_output_default=DEFAULT_MAX_OUTPUT_TOKENS if default is None else default,
        max_output_limit=config.max_output_limit,
        over_budget=config.over_budget,
    )


def _load_text(checkpoint: Checkpoint) -> ModelText:
    if checkpoint.gguf_metadata is not None:
        return load_from_gguf(checkpoint.gguf_metadata, checkpoint.architecture.vocab_size)
    assert checkpoint.folder is not None, "a checkpoint is a GGUF file or a folder"
    return load_from_folder(checkpoint.folder, checkpoint.architecture.vocab_size)


def _plan(
    config: RuntimeConfig, checkpoint: Checkpoint, device: torch.device, cache_dtype: torch.dtype, head_elements: int
) -> CapacityPlan:
    architecture = checkpoint.architecture
    facts = MemoryFacts(
        available_bytes=available_bytes(device),
        weight_bytes=checkpoint.weight_bytes,
        transient_bytes=step_transient_bytes(
            step_tokens=step_budget_tokens(DEFAULT_STEP_TOKENS, config.running_slots, DEFAULT_PAGE_SIZE),
            context_tokens=architecture.context_window if config.context_length is None else config.context_length,
            logit_rows=LOGITS_ROWS,
            hidden_size=architecture.hidden_size,
            feed_forward_size=architecture.feed_forward_size,
            query_size=architecture.query_size * (2 if architecture.gated_attention else 1),
            delta_size=max(map(_delta_size, architecture.delta_layers), default=0),
            vocab_size=architecture.vocab_size,
        ),
        kv_bytes_per_token=kv_bytes_per_token(
            num_layers=len(architecture.attention_layers),
            num_kv_heads=architecture.num_kv_heads,
            head_elements=head_elements,
            element_bytes=cache_dtype.itemsize,
        ),
        host_bytes=None if device.type == "cpu" else available_bytes(torch.device("cpu")),
        state_bytes=state_bytes(architecture, cache_dtype.itemsize),
    )
    return plan_capacity(
        facts,
        model_window=architecture.context_window,
        running_slots=config.running_slots,
        page_size=DEFAULT_PAGE_SIZE,
        context_length=config.context_length,
        kv_cache_tokens=config.kv_cache_tokens,
        paused_kv_bytes=config.paused_kv,
    )


def _delta_size(layer: GatedDelta) -> int:
    """Numbers per token: what the convolution reads, adds up and gives, then queries and keys for every value head with
    their scaled copies, the values, what comes out of them, and the gate."""
    return 3 * layer.conv_size + layer.num_value_heads * (4 * layer.key_dim + 6 * layer.value_dim)


def _device(config: RuntimeConfig) -> torch.device:
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(config.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise StartError(
            f"{field_names('device')} is {config.device!r}, but this machine has no usable CUDA device: "
            "use cpu, or auto"
        )
    return device


def _dtype(config: RuntimeConfig) -> torch.dtype:
    """auto is float32 between the operations; inside of them the native kernels round, where they compute.

    16 bit pays only with instructions that not every CPU has."""
    return {
        "auto": torch.float32,
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
    }[config.dtype]


def show_progress(name: str, now: Callable[[], float] = time.monotonic) -> Progress:
    """Progress on standard error: at most one line a second, and none when it is over within two."""
    started = now()
    last_shown = started + 1.0

    def progress(done_bytes: int, total_bytes: int) -> None:
        nonlocal last_shown
        if now() - last_shown >= 1.0:
            last_shown = now()
            share = 100 * done_bytes // max(total_bytes, 1)
            print(f"{name}: loading weights: {share:3d} % of {total_bytes / 1e6:,.0f} MB", file=sys.stderr, flush=True)

    return progress
