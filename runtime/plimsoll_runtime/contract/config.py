"""What an operator of a server may set, each value once: the source of flags, CRD fields and reference pages.

Owns the names, types, units, bounds and defaults of every setting. In: flags (command_line.py) or a manifest.
Out: a frozen `RuntimeConfig`, and with the values resolved at start a `Limits`. It does not know the model, the
memory of the machine or any wire format. Invariant: a default is written here and nowhere else; a value of None
means "not set", which is different from any number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from plimsoll_runtime.contract.values import Bytes, Device, Seconds, TenantWeight, Text, Weight, value_text, word

DEFAULT_MAX_OUTPUT_TOKENS = 4096
"""The output limit of a request that names none, on a server that configures none. It yields to the hard limit and
to the room left in the context like any other wish."""

MAX_TOKEN_COUNT = 2**31 - 1
"""The largest number of tokens that a limit may name, in a request or in the configuration."""

DEFAULT_QUANTUM_TOKENS = 128
"""Tokens that a long answer writes before the next one's turn. With the share of 1/8 that `fair` gives to long answers,
a stream of 60 tokens a second is silent for (8 - 1) x 128 / 60 = 15 s, which is one keep-alive; a larger quantum saves
next to nothing, since a paused sequence keeps its pages."""

DEFAULT_MAX_WAIT_SECONDS = 60.0
"""After so long without a token a sequence is served next, for one quantum, whatever its level."""

PRESET_WEIGHTS: Final = {"fair": (7, 1), "interactive": (8, 4, 4, 1), "fifo": (1,)}
"""Parts of the slots that each level is guaranteed; a preset has one level less thresholds."""

OverBudget = Literal["clamp", "refuse"]
Scheduling = Literal["fair", "interactive", "fifo"]
Fairness = Literal["api-key", "none"]
OnDeadline = Literal["finish", "abort"]
Offload = Literal["none", "experts", "auto"]
Runaway = Literal["off", "observe", "stop"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
SamplingDefaults = Literal["model", "neutral"]
ReasoningTags = Literal["none", "qwen3", "deepseek_r1", "think"]
CallFormat = Literal["none", "hermes", "qwen3_coder", "llama3_json", "mistral", "deepseek", "pythonic", "json"]

TokenCount = Annotated[int, Field(ge=1, le=MAX_TOKEN_COUNT, strict=True)]


def setting(default: Any, *, spec: str | None, unit: str, description: str) -> Any:
    """A field of the contract: `spec` is its path below `spec.` in an InferenceServer, None where the pod decides."""
    return Field(default, description=description, json_schema_extra={"spec": spec, "unit": unit})


class RuntimeConfig(BaseModel):
    """Everything `plimsoll serve` can be told. Frozen; unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Text = setting(
        ...,
        spec="model.source",
        unit="source",
        description="Where the model lies: file:///path or package://python_package/file (a folder of safetensors in "
        "the Hugging Face layout, or one GGUF file); in a manifest for a cluster also hf://org/name, "
        "hf://org/name/FILE.gguf, pvc://claim/path or oci://image:tag/path; on the command line also a bare path.",
    )
    served_model_name: Text | None = setting(
        None,
        spec="model.servedName",
        unit="name",
        description="The name that requests must give. Not set: the last part of the source without its suffix.",
    )
    context_length: TokenCount | None = setting(
        None,
        spec="contextLength",
        unit="tokens",
        description="Most prompt + output tokens of one request; never divided by running slots. Not set: the "
        "model's window, as far as the KV memory allows. Set but impossible: the server does not start.",
    )
    max_output_default: TokenCount | None = setting(
        None,
        spec="maxOutput.default",
        unit="tokens",
        description="Output limit of a request that names none, on every route. Not set: "
        f"{DEFAULT_MAX_OUTPUT_TOKENS}, which yields to the hard limit and to the room left in the context.",
    )
    max_output_limit: TokenCount | None = setting(
        None,
        spec="maxOutput.limit",
        unit="tokens",
        description="Hard limit on the output of any request. Not set: the context alone limits.",
    )
    over_budget: Annotated[OverBudget, word(OverBudget)] = setting(
        "clamp",
        spec="overBudget",
        unit="word",
        description="A request that asks for more than it can get is given what there is, and told so (clamp), or "
        "refused with every number (refuse). The header x-plimsoll-over-budget chooses per request.",
    )
    running_slots: Annotated[int, Field(ge=1, le=4096, strict=True)] = setting(
        4, spec="runningSlots", unit="sequences", description="Sequences that compute at once."
    )
    max_waiting: Annotated[int, Field(ge=0, le=1_000_000, strict=True)] = setting(
        128,
        spec="queue.maxWaiting",
        unit="requests",
        description="Requests that may be in the house beyond the running slots; more are refused with 429 (529 on "
        "messages). 0 means no queue.",
    )
    queue_timeout: Seconds = setting(
        120.0,
        spec="queue.timeoutSeconds",
        unit="seconds",
        description="Longest wait for a running slot; then 429 (529 on messages).",
    )
    request_timeout: Seconds = setting(
        600.0,
        spec="requestTimeoutSeconds",
        unit="seconds",
        description="Longest life of a request from its arrival; a running one ends with what it has.",
    )
    scheduling: Annotated[Scheduling, word(Scheduling)] = setting(
        "fair",
        spec="scheduling.preset",
        unit="word",
        description="Who has the running slots. fair: first come, first served up to the default output limit; an "
        "answer beyond it keeps a share of 1/8 while others wait. interactive: more levels, so that short answers "
        "overtake longer ones. fifo: a slot is kept to the end of an answer.",
    )
    quantum_tokens: Annotated[int, Field(ge=1, le=1_000_000, strict=True)] | None = setting(
        None,
        spec="scheduling.quantumTokens",
        unit="tokens",
        description="Tokens that an answer beyond the first level writes before another one of its level has its turn. "
        f"Not set: {DEFAULT_QUANTUM_TOKENS}.",
    )
    level_thresholds: Annotated[tuple[TokenCount, ...], Field(min_length=1, max_length=8, strict=False)] | None = (
        setting(
            None,
            spec="scheduling.thresholds",
            unit="tokens",
            description="Increasing counts of output tokens; with each one a sequence sinks by one level. Not set: "
            "the default output limit (fair); an eighth of it, its half and itself (interactive).",
        )
    )
    level_weights: Annotated[tuple[Weight, ...], Field(min_length=2, max_length=9, strict=False)] | None = setting(
        None,
        spec="scheduling.weights",
        unit="parts",
        description="Parts of the slots that each level is guaranteed while it has work, one more than thresholds. "
        "Not set: 7, 1 (fair); 8, 4, 4, 1 (interactive).",
    )
    max_wait: Seconds | None = setting(
        None,
        spec="scheduling.maxWaitSeconds",
        unit="seconds",
        description="A sequence that waited so long for its next token is served next, for one quantum. Not set: "
        f"{DEFAULT_MAX_WAIT_SECONDS:.0f}.",
    )
    fairness: Annotated[Fairness, word(Fairness)] = setting(
        "api-key",
        spec="fairness.by",
        unit="word",
        description="Who shares the slots by weight: the keys of the API key file (api-key), or nobody (none). Without "
        "a key file all requests are one tenant's.",
    )
    tenant_weights: Annotated[tuple[TenantWeight, ...], Field(min_length=1, max_length=64, strict=False)] = setting(
        (),
        spec="fairness.weights",
        unit="TENANT=WEIGHT",
        description="Tenants whose share is not 1, as TENANT=WEIGHT: the first 8 to 64 hexadecimal digits of the "
        "SHA-256 of an API key (printf %s KEY | sha256sum), and 1 to 1,000.",
    )
    honour_client_deadlines: bool = setting(
        True,
        spec="deadlines.honourClient",
        unit="switch",
        description="A plain answer ends before its client hangs up, where the client says when it will: "
        "x-plimsoll-request-timeout, or x-stainless-read-timeout of the OpenAI and Anthropic SDKs.",
    )
    on_deadline: Annotated[OnDeadline, word(OnDeadline)] = setting(
        "finish",
        spec="deadlines.onDeadline",
        unit="word",
        description="A request that is not done at its deadline ends with what it has (finish), or with status 504 "
        "(abort).",
    )
    runaway: Annotated[Runaway, word(Runaway)] = setting(
        "observe",
        spec="runaway.mode",
        unit="word",
        description="An answer that repeats itself is left alone (off), is counted and goes on like a long "
        'answer (observe), or ends and says so (stop). In a manifest write "Off" in quotes: YAML reads it as false.',
    )
    offload: Annotated[Offload, word(Offload)] = setting(
        "none",
        spec="offload.mode",
        unit="word",
        description="Where a mixture's experts are: all in memory (none), or packed on disk, with a cache of them in "
        "memory (experts). auto: on disk where they do not all fit beside keys and values. On a CPU only.",
    )
    expert_cache: Bytes | None = setting(
        None,
        spec="offload.expertCache",
        unit="amount",
        description="Memory for experts that are kept on disk; at least those of one token in one layer, at most all. "
        "Not set: what keys and values leave (one context, then up to a quarter of the rest).",
    )
    paused_kv: Bytes | None = setting(
        None,
        spec="offload.pausedKV",
        unit="amount",
        description="Host memory for keys and values of paused sequences that must leave the cache; 0: they are "
        "computed again. Not set: a share of what is free at the start.",
    )
    kv_cache_tokens: TokenCount | None = setting(
        None,
        spec="kvCache.maxTokens",
        unit="tokens",
        description="Tokens whose keys and values fit into the cache, shared by all sequences. Not set: one "
        "context for each running slot, as far as the memory allows.",
    )
    prefix_caching: bool = setting(
        True,
        spec="kvCache.prefixCaching",
        unit="switch",
        description="Reuse the keys and values of prompt beginnings that the same tenant sent before.",
    )
    device: Device = setting("auto", spec=None, unit="device", description="auto, cpu, cuda, or cuda:N.")
    dtype: Annotated[Dtype, word(Dtype)] = setting(
        "auto",
        spec=None,
        unit="word",
        description="Type of activations, keys and values, kept exactly. auto: float32, but where the native "
        "kernels compute (quantized weights, a CPU with AVX2) products of 8-bit activations, 8-bit keys and values.",
    )
    sampling_defaults: Annotated[SamplingDefaults, word(SamplingDefaults)] = setting(
        "model",
        spec="sampling.defaults",
        unit="word",
        description="Sampling of a request that names none: the model's generation config (model), or temperature 1 "
        "with nothing cut off (neutral).",
    )
    reasoning_parser: Annotated[ReasoningTags, word(ReasoningTags)] = setting(
        "none",
        spec="parsers.reasoning",
        unit="word",
        description="How the model marks its reasoning, which is then told apart from its answer: <think> tags (qwen3 "
        "and any model like it: think), or the same with the opening tag left out (deepseek_r1). Stop strings then "
        "look at the answer alone. none: all text is the answer.",
    )
    tool_call_parser: Annotated[CallFormat, word(CallFormat)] = setting(
        "none",
        spec="parsers.toolCalls",
        unit="word",
        description="How the model writes its tool calls: JSON in tags (hermes: Hermes, Qwen2.5, Qwen3), XML-like "
        "(qwen3_coder: Qwen3-Coder, Qwen3.5), bare JSON (llama3_json), behind marks (mistral, deepseek), as Python "
        "(pythonic), or JSON in a fence or alone (json). none: requests with tools are refused.",
    )
    max_body_bytes: Annotated[int, Field(ge=1024, le=2**31 - 1, strict=True)] = setting(
        32 * 1024 * 1024, spec=None, unit="bytes", description="Largest request body; more is 413."
    )
    drain_seconds: Seconds | None = setting(
        None,
        spec="drainSeconds",
        unit="seconds",
        description="How long running requests may finish after SIGTERM. Not set: the request timeout.",
    )
    host: Text = setting("127.0.0.1", spec=None, unit="address", description="Address to listen on.")
    port: Annotated[int, Field(ge=0, le=65_535, strict=True)] = setting(
        8000, spec=None, unit="port", description="Port to listen on; 0 takes a free one and prints it."
    )
    api_key_file: Text | None = setting(
        None,
        spec=None,
        unit="path",
        description="File with one API key per line, # begins a comment; read again when it changes. Not set: no "
        "key is asked for.",
    )

    @model_validator(mode="after")
    def _compare_only_what_was_set(self) -> Self:
        """The same cross-field rules as the CRD's CEL; a value that nobody set is never compared."""
        default, limit, context = self.max_output_default, self.max_output_limit, self.context_length
        _require_at_most("max_output_default", default, "max_output_limit", limit)
        _require_below("max_output_default", default, "context_length", context)
        _require_below("max_output_limit", limit, "context_length", context)
        _require_at_most("context_length", context, "kv_cache_tokens", self.kv_cache_tokens)
        return self

    @model_validator(mode="after")
    def _accept_nothing_that_would_be_ignored(self) -> Self:
        """As in the CRD's CEL: what a word makes meaningless is refused, not left aside."""
        if self.scheduling == "fifo":
            for name in ("quantum_tokens", "level_thresholds", "level_weights", "max_wait"):
                _require_not_set(name, getattr(self, name), "scheduling", self.scheduling)
        elif self.level_thresholds is not None or self.level_weights is not None:
            _require_levels(self.level_thresholds, self.level_weights, PRESET_WEIGHTS[self.scheduling])
        if self.offload == "none":
            _require_not_set("expert_cache", self.expert_cache, "offload", self.offload)
        if self.fairness == "none":
            _require_not_set("tenant_weights", self.tenant_weights, "fairness", self.fairness)
        _require_one_name_each(self.tenant_weights)
        if self.api_key_file is None:
            _require_keys(self.tenant_weights)
        return self


@dataclass(frozen=True, slots=True)
class Limits:
    """The effective limits of a running server, all in tokens: what `decide_budget` looks at and `/budget` shows."""

    context_length: int
    max_output_default: int
    max_output_limit: int | None
    over_budget: OverBudget


def field_names(name: str) -> str:
    """How a reader finds a setting: its flag, and its path in the manifest where it has one."""
    spec = setting_extra(name)["spec"]
    flag = f"--{name.replace('_', '-')}"
    return f"{flag} (spec.{spec})" if spec else flag


def setting_extra(name: str) -> dict[str, Any]:
    """`{"spec": path or None, "unit": word}` of one setting. Raises KeyError for an unknown name."""
    extra = RuntimeConfig.model_fields[name].json_schema_extra
    assert isinstance(extra, dict)
    return extra


def _require_at_most(name: str, value: int | None, bound_name: str, bound: int | None) -> None:
    if value is not None and bound is not None and value > bound:
        raise ValueError(_conflict(name, value, "exceeds", bound_name, bound))


def _require_below(name: str, value: int | None, bound_name: str, bound: int | None) -> None:
    if value is not None and bound is not None and value >= bound:
        raise ValueError(_conflict(name, value, "leaves no room for a prompt within", bound_name, bound))


def _require_not_set(name: str, value: Any, word_name: str, word: str) -> None:
    if value not in (None, ()):
        raise ValueError(
            f"{name} {value_text(value)} means nothing with {word_name} {word}: leave out {field_names(name)}, "
            f"or choose another {field_names(word_name)}"
        )


def _require_keys(weights: Sequence[TenantWeight]) -> None:
    if weights:
        raise ValueError(
            f"tenant_weights {value_text(tuple(weights))} means nothing without API keys: leave out "
            f"{field_names('tenant_weights')}, or give the keys in --api-key-file (spec.apiKeysSecretRef)"
        )


def _require_levels(
    thresholds: tuple[int, ...] | None, weights: tuple[int, ...] | None, preset_weights: tuple[int, ...]
) -> None:
    for low, high in pairwise(thresholds or ()):
        if low >= high:
            raise ValueError(
                f"level_thresholds {low:,} is followed by {high:,}: give increasing token counts in "
                f"{field_names('level_thresholds')}"
            )
    num_levels = len(preset_weights) if thresholds is None else len(thresholds) + 1
    num_weights = len(preset_weights if weights is None else weights)
    if num_weights != num_levels:
        raise ValueError(
            f"level_thresholds make {num_levels} levels, but level_weights are for {num_weights}: give one weight more "
            f"than thresholds in {field_names('level_weights')}; what is not given comes from the preset"
        )


def _require_one_name_each(weights: Sequence[TenantWeight]) -> None:
    for each in weights:
        if sum(other.tenant.startswith(each.tenant) for other in weights) > 1:
            raise ValueError(
                f"tenant_weights name the tenant {each.tenant} more than once: name each one once, by more digits "
                f"where two begin alike, in {field_names('tenant_weights')}"
            )


def _conflict(name: str, value: int, verb: str, bound_name: str, bound: int) -> str:
    return (
        f"{name} {value:,} {verb} {bound_name} {bound:,}: lower {field_names(name)} or raise {field_names(bound_name)}"
    )
