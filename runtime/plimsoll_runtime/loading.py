"""From a configuration to a model that can answer: the order in which a server gets ready.

Owns the order: find the files, read headers, read the text side, plan the memory, load weights, make the engine's
parts. In: a `RuntimeConfig`. Out: a `LoadedModel`, or a `StartError` with one sentence. It starts no thread and opens
no socket. Invariant: the plan is computed and refused before any weight is read.
"""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from plimsoll_runtime.admission.admit import ServedModel
from plimsoll_runtime.contract.config import DEFAULT_MAX_OUTPUT_TOKENS, Limits, Offload, RuntimeConfig, field_names
from plimsoll_runtime.contract.last_words import StartError
from plimsoll_runtime.contract.model_source import (
    ModelSourceError,
    default_served_name,
    parse_model_source,
    resolve_model_path,
)
from plimsoll_runtime.engine.capacity import CapacityError, CapacityPlan, MemoryFacts, step_transient_bytes
from plimsoll_runtime.engine.expert_plan import ExpertFacts, MemoryPlan, plan_memory
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
from plimsoll_runtime.kernels.choice import KernelChoice, StepShape, choose_for_cuda, choose_for_processor
from plimsoll_runtime.models.architecture import GatedDelta, Mixture
from plimsoll_runtime.models.decoder import Progress, load_decoder
from plimsoll_runtime.models.experts.cache import ExpertCache, LayerExperts
from plimsoll_runtime.models.experts.folder import provide_pack
from plimsoll_runtime.models.experts.layout import ExpertLayout, lay_out_experts
from plimsoll_runtime.models.experts.pack import PackError
from plimsoll_runtime.models.native_decoder import NATIVE_CACHE_DTYPE, NativeDecoder, fits_library, native_head_elements
from plimsoll_runtime.models.step_kernels import choose_step_kernels
from plimsoll_runtime.models.weights.checkpoint import Checkpoint, open_checkpoint
from plimsoll_runtime.models.weights.errors import CheckpointError
from plimsoll_runtime.text.errors import TemplateError, TokenizerError
from plimsoll_runtime.text.model_text import ModelText, load_from_folder, load_from_gguf


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Everything a service is made of, before any thread runs. `kernels` says what computes, and why; `offload` where
    experts are, and why; `experts` is their cache, where they are on disk."""

    text: ModelText
    facts: ServedModel
    limits: Limits
    plan: CapacityPlan
    settings: EngineSettings
    runner: Runner
    host: KVStore
    kernels: Mapping[str, str | int]
    offload: Mapping[str, str | int]
    experts: ExpertCache | None


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model whose headers are read, and what will compute with it."""

    path: Path
    checkpoint: Checkpoint
    kernels: KernelChoice
    device: torch.device
    dtype: torch.dtype

    def expert_layout(self) -> ExpertLayout | None:
        """How its experts are packed; None where it has none."""
        if self.checkpoint.architecture.mixture is None:
            return None
        return lay_out_experts(self.checkpoint, self.dtype, self.kernels.native)


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
    except (ModelSourceError, CheckpointError, TokenizerError, TemplateError, CapacityError, PackError) as error:
        raise StartError(str(error)) from None


def open_model(config: RuntimeConfig) -> OpenedModel:
    """Reads headers only. Raises CheckpointError, ModelSourceError or StartError."""
    device, dtype = _device(config), _dtype(config)
    torch.set_num_threads(usable_cores())
    path = resolve_model_path(parse_model_source(config.model))
    checkpoint = open_checkpoint(path)
    return OpenedModel(path, checkpoint, _choose_kernels(config, device, dtype, checkpoint), device, dtype)


def _load(config: RuntimeConfig, progress: Progress) -> LoadedModel:
    opened = open_model(config)
    checkpoint, kernels, device, dtype = opened.checkpoint, opened.kernels, opened.device, opened.dtype
    text = _load_text(checkpoint)
    computes_natively = kernels.native is not None and fits_library(
        checkpoint.architecture, checkpoint.weights.layer_storages, dtype, DEFAULT_PAGE_SIZE
    )
    cache_dtype = NATIVE_CACHE_DTYPE if computes_natively else dtype
    head_dim = checkpoint.architecture.head_dim
    head_elements = native_head_elements(head_dim) if computes_natively else head_dim
    layout = opened.expert_layout()
    memory = _plan(config, checkpoint, device, layout, cache_dtype, head_elements)
    plan = memory.capacity
    limits = _limits(config, plan)
    experts = _open_experts(opened, layout, memory)
    source = None if experts is None else lambda layer: LayerExperts(experts, layer)
    decoder = load_decoder(
        checkpoint, device, dtype, progress, kernels.native, source, choose_step_kernels(kernels.triton)
    )
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
        offload=_offload_facts(memory, experts),
        experts=experts,
    )


def _open_experts(opened: OpenedModel, layout: ExpertLayout | None, memory: MemoryPlan) -> ExpertCache | None:
    """The cache over the pack, which is written now where there is none."""
    if layout is None or memory.expert_slots is None:
        return None
    _, pack = provide_pack(opened.path, opened.checkpoint, layout, show_progress("plimsoll serve", "packing experts"))
    return ExpertCache(pack, layout, memory.expert_slots)


def _offload_facts(memory: MemoryPlan, experts: ExpertCache | None) -> dict[str, str | int]:
    """For the start log and for `GET /budget`."""
    facts: dict[str, str | int] = {"mode": memory.mode, "reason": memory.reason}
    if experts is not None:
        facts |= {
            "expert_slots": experts.num_slots,
            "experts": experts.num_experts,
            "expert_cache_bytes": experts.num_bytes,
        }
    return facts


def _choose_kernels(
    config: RuntimeConfig, device: torch.device, dtype: torch.dtype, checkpoint: Checkpoint
) -> KernelChoice:
    """The native kernels round what the layers hand on, and keys and values, to 8 bits: only for auto."""
    if device.type == "cuda":
        return choose_for_cuda(device, _step_shape(checkpoint, dtype))
    if config.dtype != "auto":
        return KernelChoice(reason=f"{field_names('dtype')} is {config.dtype}; the native kernels need auto")
    return choose_for_processor(usable_cores(), checkpoint.weights.layer_storages)


def _step_shape(checkpoint: Checkpoint, dtype: torch.dtype) -> StepShape:
    architecture = checkpoint.architecture
    windows = [window for window in architecture.windows if window is not None]
    return StepShape(
        num_heads=architecture.num_heads,
        num_kv_heads=architecture.num_kv_heads,
        head_dim=architecture.head_dim,
        page_size=DEFAULT_PAGE_SIZE,
        window=min(windows, default=None),
        dtype=dtype,
        storages=frozenset(entry.storage.name for entry in checkpoint.weights.roles.values() if len(entry.shape) > 1),
    )


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
    config: RuntimeConfig,
    checkpoint: Checkpoint,
    device: torch.device,
    layout: ExpertLayout | None,
    cache_dtype: torch.dtype,
    head_elements: int,
) -> MemoryPlan:
    shape, mixture = checkpoint.architecture, checkpoint.architecture.mixture
    step_tokens = step_budget_tokens(DEFAULT_STEP_TOKENS, config.running_slots, DEFAULT_PAGE_SIZE)
    expert_bytes = checkpoint.expert_bytes
    facts = MemoryFacts(
        available_bytes=available_bytes(device),
        weight_bytes=checkpoint.weight_bytes - expert_bytes,
        transient_bytes=step_transient_bytes(
            step_tokens=step_tokens,
            context_tokens=shape.context_window if config.context_length is None else config.context_length,
            logit_rows=LOGITS_ROWS,
            hidden_size=shape.hidden_size,
            feed_forward_size=shape.feed_forward_size,
            query_size=shape.query_size * (2 if shape.gated_attention else 1),
            delta_size=max(map(_delta_size, shape.delta_layers), default=0),
            pair_size=0 if mixture is None or device.type == "cpu" else _pair_size(shape.hidden_size, mixture),
            vocab_size=shape.vocab_size,
        ),
        kv_bytes_per_token=kv_bytes_per_token(
            num_layers=len(shape.attention_layers),
            num_kv_heads=shape.num_kv_heads,
            head_elements=head_elements,
            element_bytes=cache_dtype.itemsize,
        ),
        host_bytes=None if device.type == "cpu" else available_bytes(torch.device("cpu")),
        state_bytes=state_bytes(shape, cache_dtype.itemsize),
    )
    experts = None
    if layout is not None and mixture is not None:
        experts = ExpertFacts(layout.count, mixture.experts_per_token, layout.slot_bytes, expert_bytes)
    return plan_memory(
        facts,
        experts,
        mode=_offload_mode(config, device),
        expert_cache_bytes=config.expert_cache,
        kept_outputs_bytes=0 if mixture is None else 4 * step_tokens * mixture.experts_per_token * shape.hidden_size,
        model_window=shape.context_window,
        running_slots=config.running_slots,
        page_size=DEFAULT_PAGE_SIZE,
        context_length=config.context_length,
        kv_cache_tokens=config.kv_cache_tokens,
        paused_kv_bytes=config.paused_kv,
    )


def _offload_mode(config: RuntimeConfig, device: torch.device) -> Offload:
    """Experts come from disk to a processor alone: auto keeps them where the model is."""
    if device.type != "cpu" and config.offload == "experts":
        raise StartError(
            f"{field_names('offload')} experts works on a CPU only, and the model is on {device}: choose none, or "
            f"{field_names('device')} cpu"
        )
    return config.offload if device.type == "cpu" else "none"


def _delta_size(layer: GatedDelta) -> int:
    """Numbers per token: what the convolution reads, adds up and gives, then queries and keys for every value head with
    their scaled copies, the values, what comes out of them, and the gate."""
    return 3 * layer.conv_size + layer.num_value_heads * (4 * layer.key_dim + 6 * layer.value_dim)


def _pair_size(hidden_size: int, mixture: Mixture) -> int:
    """Numbers per token where all experts are computed at once (models/triton_experts.py): for each expert of the token
    gate and up, apart and joined, their product with its factors, and the result with its weighted copy."""
    return mixture.experts_per_token * (7 * mixture.expert_size + 2 * hidden_size)


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


def show_progress(name: str, what: str, now: Callable[[], float] = time.monotonic) -> Progress:
    """Progress on standard error: at most one line a second, and none when it is over within two."""
    started = now()
    last_shown = started + 1.0

    def progress(done_bytes: int, total_bytes: int) -> None:
        nonlocal last_shown
        if now() - last_shown >= 1.0:
            last_shown = now()
            share = 100 * done_bytes // max(total_bytes, 1)
            print(f"{name}: {what}: {share:3d} % of {total_bytes / 1e6:,.0f} MB", file=sys.stderr, flush=True)

    return progress
