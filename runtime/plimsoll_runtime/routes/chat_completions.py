"""`POST /v1/chat/completions`: a conversation in, `chat.completion` or its chunks out.

Owns the wire names of this route. In: a JSON object, or answer events. Out: a `GenerationRequest`, a response body, or
frames. It knows no configuration, tokenizer or engine. Invariants: `max_completion_tokens` and its deprecated alias
`max_tokens` are one limit. Source: OpenAI's API reference, "Chat Completions".
"""

from collections.abc import Mapping
from typing import Any, Final

from plimsoll_runtime.contract.endpoints import CHAT_COMPLETIONS as PATH
from plimsoll_runtime.contract.endpoints import HEADER_OVER_BUDGET, Route
from plimsoll_runtime.events import CallArguments, CallBegun, Echo, ReasoningDelta, TextDelta, TextLogprob
from plimsoll_runtime.request import ChatPrompt, GenerationRequest, WireValue
from plimsoll_runtime.routes.body import refuse, refuse_unsupported, refusing, unknown_fields, wire_values
from plimsoll_runtime.routes.chat_messages import read_messages
from plimsoll_runtime.routes.dialect import Answer, AnswerFacts, ChoiceAnswer, Dialect, StreamWriter
from plimsoll_runtime.routes.openai_fields import (
    ENVELOPE_NAMES,
    JUDGED_NAMES,
    UNSUPPORTED,
    WITHOUT_EFFECT,
    ending_fields,
    function_call,
    heading,
    read_envelope,
    usage_body,
)
from plimsoll_runtime.routes.openai_logprobs import chat_logprobs
from plimsoll_runtime.routes.openai_stream import OpenAIStream
from plimsoll_runtime.routes.structures import FIELDS as STRUCTURE_FIELDS
from plimsoll_runtime.routes.structures import beside_tools, openai_structure
from plimsoll_runtime.routes.template_arguments import FIELD as TEMPLATE_ARGUMENTS
from plimsoll_runtime.routes.template_arguments import NO_EFFORT, asked_by, read_effort, template_arguments
from plimsoll_runtime.routes.tools import FIELDS as TOOL_FIELDS
from plimsoll_runtime.routes.tools import chat_tools, offered

_JUDGED: Final = {**JUDGED_NAMES, "top_logprobs": "top_logprobs"}
_LIMITS: Final = ("max_completion_tokens", "max_tokens")
_WITHOUT_EFFECT: Final = WITHOUT_EFFECT | {"prompt_cache_options"}
_UNSUPPORTED: Final[Mapping[str, tuple[Any, ...]]] = {
    **UNSUPPORTED,
    "functions": ([],),
    "function_call": ("none", "auto"),
    "store": (False,),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "moderation": (),
    "reasoning": ({},),
    "thinking": ({"type": "disabled"},),
    "chat_template": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "echo": (False,),
    "best_of": (1,),
}
_KNOWN: Final = frozenset(
    {
        *("messages", "reasoning_effort", TEMPLATE_ARGUMENTS, *TOOL_FIELDS, *STRUCTURE_FIELDS),
        *(*_LIMITS, *_JUDGED, *_WITHOUT_EFFECT, *_UNSUPPORTED, *ENVELOPE_NAMES),
    }
)


class ChatCompletions:
    """The dialect; it has no state."""

    route: Route = PATH

    @refusing
    def to_request(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> GenerationRequest:
        envelope = read_envelope(body)
        messages = read_messages(body.get("messages"))
        refuse_unsupported(body, _UNSUPPORTED)
        tool_use = chat_tools(body)
        effort = _effort(body)
        arguments = template_arguments(body, asked_by(effort))
        return GenerationRequest(
            route=self.route,
            model=envelope.model,
            prompt_param="messages",
            prompts=(ChatPrompt(messages, arguments, offered(tool_use)),),
            tool_use=tool_use,
            reasoning_param=None if effort in (None, NO_EFFORT) else "reasoning_effort",
            structure=beside_tools(openai_structure(body), tool_use),
            wire=wire_values(body, _JUDGED) | _output_limit(body),
            over_budget=headers.get(HEADER_OVER_BUDGET),
            stream=envelope.stream,
            include_usage=envelope.include_usage,
            unknown_fields=unknown_fields(body, _KNOWN) + envelope.unknown_options,
        )

    def to_response(self, answer: Answer, facts: AnswerFacts) -> dict[str, Any]:
        return {
            **heading(facts, "chatcmpl-", "chat.completion"),
            "choices": [_whole_choice(choice, facts) for choice in answer.choices],
            "usage": usage_body(answer.usage),
        }

    def stream_writer(self, facts: AnswerFacts) -> StreamWriter:
        return OpenAIStream(facts, "chatcmpl-", "chat.completion.chunk", _Choices())


class _Choices:
    """What stands in the choices of a stream. The first chunk of each says who speaks."""

    def opening(self) -> dict[str, Any]:
        return {"delta": {"role": "assistant", "content": "", "refusal": None}, "logprobs": None}

    def echo(self, event: Echo) -> dict[str, Any]:
        raise AssertionError("this route never asks for an echo")

    def delta(self, event: TextDelta) -> dict[str, Any]:
        return {"delta": {"content": event.text}, "logprobs": chat_logprobs(event.logprobs) if event.logprobs else None}

    def reasoning(self, event: ReasoningDelta) -> dict[str, Any]:
        return {"delta": {"reasoning_content": event.text}, "logprobs": None}

    def call(self, event: CallBegun | CallArguments) -> dict[str, Any]:
        """The first chunk of a call has its id and name, the others its arguments."""
        if isinstance(event, CallBegun):
            call = function_call(event.call_id, event.name, "")
        else:
            call = {"function": {"arguments": event.text}}
        return {"delta": {"tool_calls": [{"index": event.call, **call}]}, "logprobs": None}

    def ending(self) -> dict[str, Any]:
        return {"delta": {}, "logprobs": None}


def _whole_choice(choice: ChoiceAnswer, facts: AnswerFacts) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.reasoning is not None:
        message["reasoning_content"] = choice.reasoning
    if choice.calls:
        message["content"] = choice.text if choice.text else None
        message["tool_calls"] = [function_call(call.call_id, call.name, call.arguments) for call in choice.calls]
    return {
        "index": choice.choice,
        "message": message,
        "logprobs": _asked_logprobs(choice.logprobs, facts),
        **ending_fields(choice),
    }


def _asked_logprobs(logprobs: tuple[TextLogprob, ...], facts: AnswerFacts) -> dict[str, Any] | None:
    asked = facts.request.wire.get("logprobs")
    return chat_logprobs(logprobs) if asked is not None and asked.value is True else None


def _output_limit(body: Mapping[str, Any]) -> dict[str, WireValue]:
    """One limit under two names: the newer one speaks; both may be given where they say the same."""
    given = [WireValue(name, body[name]) for name in _LIMITS if body.get(name) is not None]
    if len(given) == 2 and not _same(given[0].value, given[1].value):
        both = " and ".join(f"{limit.param} {limit.value!r:.40}" for limit in given)
        message = f"{both} are one limit under two names, and differ: give one"
        raise refuse("invalid_parameter_combination", message, given[0].param)
    return {"requested_output_tokens": given[0]} if given else {}


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON values: 8 is 8.0, but true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _effort(body: Mapping[str, Any]) -> str | None:
    """Thinking may be turned off by another name too; any other value of that one has been refused before."""
    effort = read_effort(body.get("reasoning_effort"), "reasoning_effort")
    return NO_EFFORT if effort is None and body.get("thinking") is not None else effort


CHAT_COMPLETIONS: Final[Dialect] = ChatCompletions()
