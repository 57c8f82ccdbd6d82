"""`/v1/responses`: OpenAI's Responses API as pure converters.

Owns the wire names of this API. In: a parsed body and lower-case headers, or answer events. Out: a `GenerationRequest`,
or bodies and frames in the API's shape. It knows no configuration, tokenizer, engine or store: a request that continues
an earlier answer carries `previous_response_id` in its `dialect_options` until `ResponsesMemory.resolve` puts the
earlier messages before its own. Limits as everywhere: OpenAI's own minimum of 16 for `max_output_tokens` is not
enforced. Source: OpenAI's API reference, "Responses".
"""

from collections.abc import Mapping
from typing import Any, Final

from plimsoll_runtime.contract.endpoints import HEADER_OVER_BUDGET, Route
from plimsoll_runtime.contract.endpoints import RESPONSES as PATH
from plimsoll_runtime.request import ChatPrompt, GenerationRequest, WireValue
from plimsoll_runtime.routes.body import (
    WireModel,
    read,
    refuse,
    refuse_unsupported,
    refusing,
    unknown_fields,
    wire_values,
)
from plimsoll_runtime.routes.dialect import Answer, AnswerFacts, StreamWriter
from plimsoll_runtime.routes.openai_fields import ENVELOPE_NAMES, JUDGED_NAMES, UNSUPPORTED, Envelope, read_envelope
from plimsoll_runtime.routes.responses_items import read_input
from plimsoll_runtime.routes.responses_object import finished_response
from plimsoll_runtime.routes.responses_stream import ResponsesStream
from plimsoll_runtime.routes.structures import EXTENSION, OLDER_EXTENSIONS, beside_tools, responses_structure
from plimsoll_runtime.routes.template_arguments import FIELD as TEMPLATE_ARGUMENTS
from plimsoll_runtime.routes.template_arguments import NO_EFFORT, asked_by, read_effort, template_arguments
from plimsoll_runtime.routes.tools import FIELDS as TOOL_FIELDS
from plimsoll_runtime.routes.tools import offered, responses_tools

LOGPROBS_INCLUDED: Final = "message.output_text.logprobs"
INCLUDABLE: Final = frozenset(
    {
        LOGPROBS_INCLUDED,
        "reasoning.encrypted_content",
        "message.input_image.image_url",
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
    }
)
"""All values of the API. Those about items that this server never makes need nothing and are accepted."""

_JUDGED: Final[Mapping[str, str]] = {name: name for name in JUDGED_NAMES if name not in {"n", "logprobs"}} | {
    "max_output_tokens": "requested_output_tokens",
    "top_logprobs": "top_logprobs",
}
_UNSUPPORTED: Final[Mapping[str, tuple[Any, ...]]] = {
    **UNSUPPORTED,
    "background": (False,),
    "background_options": (),
    "conversation": (),
    "context_management": ([],),
    "truncation": ("disabled", "auto"),
    "prompt": (),
    "moderation": (),
    "image": (),
    "access_programs": (),
    "n": (1,),
}
_WITHOUT_EFFECT: Final = frozenset(
    {"prompt_cache_retention", "prompt_cache_options", "max_tool_calls", "client_metadata", "stream_options"}
)
"""Fields about caching and accounting, or about tools that OpenAI's servers run: accepted with any value."""

_ECHO_DEFAULTS: Final[Mapping[str, Any]] = {
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "service_tier": "default",
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "truncation": "disabled",
}
"""What the response object repeats from the request, and what it says where the request said nothing."""
_ECHOED_IF_SENT: Final = ("user", "safety_identifier", "prompt_cache_key")


class Body(WireModel):
    """The fields that this dialect reads itself, beside the envelope and `input`."""

    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    include: list[str] | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


KNOWN: Final = (
    frozenset({"input", TEMPLATE_ARGUMENTS, *TOOL_FIELDS, *Body.model_fields, *ENVELOPE_NAMES, *_JUDGED, *_UNSUPPORTED})
    | {EXTENSION, *OLDER_EXTENSIONS}
    | _WITHOUT_EFFECT
)


class Responses:
    """The dialect of `/v1/responses`. Stateless."""

    route: Route = PATH

    @refusing
    def to_request(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> GenerationRequest:
        envelope = read_envelope(body)
        conversation = read_input(body.get("input"))
        parsed = read(Body, body)
        refuse_unsupported(body, _UNSUPPORTED)
        _refuse_verbosity(parsed.text)
        effort = _effort(parsed.reasoning)
        tool_use, left_out = responses_tools(body)
        if parsed.instructions:
            conversation = ({"role": "system", "content": parsed.instructions}, *conversation)
        return GenerationRequest(
            route=PATH,
            model=envelope.model,
            prompt_param="input",
            prompts=(ChatPrompt(conversation, template_arguments(body, asked_by(effort)), offered(tool_use)),),
            tool_use=tool_use,
            drops_oldest=body.get("truncation") == "auto",
            reasoning_param=None if effort in (None, NO_EFFORT) else "reasoning.effort",
            structure=beside_tools(responses_structure(parsed.text, body), tool_use),
            wire=wire_values(body, _JUDGED) | _logprobs(body, parsed.include),
            over_budget=headers.get(HEADER_OVER_BUDGET),
            stream=envelope.stream,
            unknown_fields=_unknown(body, envelope) + left_out,
            dialect_options=_options(body, parsed),
        )

    def to_response(self, answer: Answer, facts: AnswerFacts) -> dict[str, Any]:
        return finished_response(answer, facts)

    def stream_writer(self, facts: AnswerFacts) -> StreamWriter:
        return ResponsesStream(facts)


RESPONSES: Final = Responses()


def _refuse_verbosity(text: Mapping[str, Any] | None) -> None:
    """Medium is what happens anyway."""
    if (text or {}).get("verbosity") not in (None, "medium"):
        raise refuse("unsupported_parameter", "text.verbosity is not supported: leave it out", "text.verbosity")


def _effort(reasoning: Mapping[str, Any] | None) -> str | None:
    """Reasoning is answered as it was written: a summary is never made of it, whichever was asked for."""
    return read_effort(None if reasoning is None else reasoning.get("effort"), "reasoning.effort")


def _logprobs(body: Mapping[str, Any], include: list[str] | None) -> dict[str, WireValue]:
    """Log probabilities are asked for by `include`; admission knows them by the switch that chat has."""
    for index, value in enumerate(include or []):
        if value not in INCLUDABLE:
            param = f"include.{index}"
            raise refuse("invalid_value", f"{param}: {value[:80]!r} is not a value of the API", param)
    if LOGPROBS_INCLUDED in (include or []):
        return {"logprobs": WireValue("include", True)}
    top = body.get("top_logprobs")
    if type(top) is int and top > 0:
        message = f"top_logprobs {top} needs include: [{LOGPROBS_INCLUDED!r}]"
        raise refuse("invalid_parameter_combination", message, "top_logprobs")
    return {}


def _options(body: Mapping[str, Any], parsed: Body) -> dict[str, Any]:
    """What the answer repeats, and what the store needs. `store` is true where it is not given, as the API says."""
    echoed = {name: default if body.get(name) is None else body[name] for name, default in _ECHO_DEFAULTS.items()}
    echoed |= {name: body[name] for name in _ECHOED_IF_SENT if body.get(name) is not None}
    return {
        "instructions": parsed.instructions,
        "previous_response_id": parsed.previous_response_id,
        "store": parsed.store is not False,
        "echoed": echoed,
    }


def _unknown(body: Mapping[str, Any], envelope: Envelope) -> tuple[str, ...]:
    return unknown_fields(body, KNOWN) + envelope.unknown_options
