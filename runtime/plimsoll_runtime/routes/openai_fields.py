"""What the OpenAI routes have in common: envelope, names of sampling values, usage, calls, how a choice ended.

In and out: JSON values. Nothing here knows messages, prompts or choices. Source: OpenAI's API reference
of the two routes, and for fields that OpenAI does not have the names that vLLM gave them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import Field

from plimsoll_runtime.events import ChoiceEnded, Usage
from plimsoll_runtime.routes.body import WireModel, read, refuse
from plimsoll_runtime.routes.dialect import AnswerFacts, ChoiceAnswer, finish_detail_body

_JUDGED = (
    "temperature top_p top_k min_p presence_penalty frequency_penalty repetition_penalty logit_bias seed "
    "stop stop_token_ids min_tokens ignore_eos repetition_stop n logprobs"
)
JUDGED_NAMES: Final[Mapping[str, str]] = {name: name for name in _JUDGED.split()}
"""Wire name -> our name of the values that admission judges on both routes."""

WITHOUT_EFFECT: Final = frozenset(
    {"user", "metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"}
)
"""Documented fields that do not change an answer here; accepted with any value."""

UNSUPPORTED: Final[Mapping[str, tuple[Any, ...]]] = {
    "service_tier": ("auto", "default"),
    "use_beam_search": (False,),
    "truncate_prompt_tokens": (),
    "prompt_logprobs": (),
}
"""Fields that would change an answer and are not built, with the values that would not."""


class _StreamOptions(WireModel):
    include_usage: bool | None = None


class _Envelope(WireModel):
    model: str = Field(min_length=1)
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


@dataclass(frozen=True, slots=True)
class Envelope:
    """Whom the request is for and how the answer comes. `unknown_options` are wire paths, to be counted."""

    model: str
    stream: bool
    include_usage: bool
    unknown_options: tuple[str, ...]


ENVELOPE_NAMES: Final = frozenset(_Envelope.model_fields)


def read_envelope(body: Mapping[str, Any]) -> Envelope:
    """Raises RefusedError for a wrong type, and for `stream_options` without a stream."""
    sent = read(_Envelope, {name: body[name] for name in ENVELOPE_NAMES if name in body})
    options = sent.stream_options
    stream = sent.stream is True
    if options is not None and not stream:
        message = "stream_options is only allowed with a stream: leave it out, or set stream to true"
        raise refuse("invalid_parameter_combination", message, "stream_options")
    known = {"include_usage", "include_obfuscation"}
    unknown = () if options is None else tuple(name for name in options.model_extra or {} if name not in known)
    return Envelope(
        model=sent.model,
        stream=stream,
        include_usage=options is not None and options.include_usage is True,
        unknown_options=tuple(f"stream_options.{name}" for name in unknown),
    )


def usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def ending_fields(choice: ChoiceAnswer | ChoiceEnded) -> dict[str, Any]:
    """How a choice ended. Beside the reason, our two additions: which stop string matched, or which limit ended it."""
    fields: dict[str, Any] = {"finish_reason": choice.reason}
    if choice.matched_stop is not None:
        fields["matched_stop"] = choice.matched_stop
    if choice.detail is not None:
        fields["finish_detail"] = finish_detail_body(choice.detail)
    return fields


def call_id_field(call_id: str) -> str:
    """A call's id as these APIs write it: its result comes back under it."""
    return f"call_{call_id}"


def function_call(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    """A call in a message of the assistant, as it is answered, and as it stands in a conversation."""
    return {"id": call_id_field(call_id), "type": "function", "function": {"name": name, "arguments": arguments}}


def heading(facts: AnswerFacts, id_prefix: str, kind: str) -> dict[str, Any]:
    """The fields that a plain answer and each chunk of a stream begin with."""
    return {
        "id": f"{id_prefix}{facts.request_id}",
        "object": kind,
        "created": facts.created,
        "model": facts.model,
        "system_fingerprint": facts.system_fingerprint,
    }
