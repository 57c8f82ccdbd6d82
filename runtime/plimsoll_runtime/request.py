"""What a route asks for, in one shape for all dialects: the output of every `to_request`.

Owns the neutral request. A dialect checks the shape of its own body (types of messages, unknown parts) and copies the
numbers as they were sent into `GenerationRequest`; admission judges them, so that no route can judge differently. It
knows no configuration: an absent value is None here and gets its default in admission.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from plimsoll_runtime.contract.endpoints import Route


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages in the shape that chat templates read.

    Each message has `role` and `content` (a string, or None for an assistant that only called tools), and may have
    `reasoning_content`, `tool_calls` (with `function.arguments` as a mapping where it parses), `tool_call_id`, `name`.
    """

    messages: tuple[Mapping[str, Any], ...]
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple["Tool", ...] = ()
    """Those that the model is to see."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call; `parameters` is a JSON schema."""

    name: str
    description: str | None
    parameters: Mapping[str, Any]


StructureKind = Literal["json_schema", "regex", "grammar", "choice"]


@dataclass(frozen=True, slots=True)
class Structure:
    """The form that an answer is to have, and the path of `source` in the body.

    `source` is a JSON schema, a regular expression, a grammar in Lark's notation, or texts of which the answer is one.
    Strict: a part of a schema that cannot be enforced is a refusal; else it is left out.
    """

    kind: StructureKind
    source: Any
    param: str
    is_strict: bool = False


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that the model may call in this answer, at least one; `parallel`: more than one call is wanted."""

    tools: tuple[Tool, ...]
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A text that is continued as it is; special tokens are those that the tokenizer itself adds."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids as the client counted them; admission checks that they exist."""

    token_ids: tuple[int, ...]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


@dataclass(frozen=True, slots=True)
class WireValue:
    """One value as it was sent, with the name under which the client sent it (`max_completion_tokens`, ...)."""

    param: str
    value: Any


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """How long the client says it waits, as its headers have it: in all, and (its SDK's words) without a sign."""

    own: str | None = None
    sdk: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request of a client. `wire` holds numbers and lists that admission judges, by our name:

    output limit `requested_output_tokens`, of it for reasoning `reasoning_budget_tokens`; sampling `temperature top_p
    top_k min_p presence_penalty frequency_penalty repetition_penalty logit_bias seed`; ending `stop stop_token_ids
    min_tokens ignore_eos repetition_stop`; shape `n best_of logprobs top_logprobs`. A name that is absent, or whose
    value is None, was not given.
    """

    route: Route
    model: str
    prompt_param: str
    prompts: tuple[Prompt, ...]
    wire: Mapping[str, WireValue] = field(default_factory=dict)
    over_budget: str | None = None
    timeouts: ClientTimeouts = ClientTimeouts()
    stream: bool = False
    include_usage: bool = False
    echo: bool = False
    unknown_fields: tuple[str, ...] = ()
    tool_use: ToolUse | None = None
    drops_oldest: bool = False
    """A conversation that does not fit loses its oldest turns, instead of being refused."""
    reasoning_param: str | None = None
    """The field by which the client asks for reasoning, where it does."""
    structure: Structure | None = None
    dialect_options: Mapping[str, Any] = field(default_factory=dict)
    """What only the dialect itself needs to write its answer (for example `store` on responses)."""
