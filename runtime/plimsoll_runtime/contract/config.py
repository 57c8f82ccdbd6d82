"""What an operator of a server may set, each value once: the source of flags, CRD fields and reference pages.

Owns the names, types, units, bounds and defaults of every setting. In: flags (command_line.py) or a manifest.
Out: a frozen `RuntimeConfig`, and with the values resolved at start a `Limits`. It does not know the model, the
memory of the machine or any wire format. Invariant: a default is written here and nowhere else; a value of None
means "not set", which is different from any number.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

DEFAULT_MAX_OUTPUT_TOKENS = 4096
"""The output limit of a request that names none, on a server that configures none. It yields to the hard limit and
to the room left in the context like any other wish."""

MAX_TOKEN_COUNT = 2**31 - 1
"""The largest number of tokens that a limit may name, in a request or in the configuration."""

OverBudget = Literal["clamp", "refuse"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
SamplingDefaults = Literal["model", "neutral"]


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


Word = BeforeValidator(_lower)
"""Words are matched without regard to case: `Clamp` in a manifest is `clamp` here."""

TokenCount = Annotated[int, Field(ge=1, le=MAX_TOKEN_COUNT, strict=True)]
Text = Annotated[str, Field(min_length=1)]
Device = Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$")]
Seconds = Annotated[float, Field(gt=0, le=86_400 * 7, allow_inf_nan=False)]


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
    over_budget: Annotated[OverBudget, Word] = setting(
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
    dtype: Annotated[Dtype, Word] = setting(
        "auto",
        spec=None,
        unit="word",
        description="Type of activations, keys and values. auto: what the device computes fast and exactly.",
    )
    sampling_defaults: Annotated[SamplingDefaults, Word] = setting(
        "model",
        spec="sampling.defaults",
        unit="word",
        description="Sampling of a request that names none: the model's generation config (model), or temperature 1 "
        "with nothing cut off (neutral).",
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


def _conflict(name: str, value: int, verb: str, bound_name: str, bound: int) -> str:
    return (
        f"{name} {value:,} {verb} {bound_name} {bound:,}: lower {field_names(name)} or raise {field_names(bound_name)}"
    )
