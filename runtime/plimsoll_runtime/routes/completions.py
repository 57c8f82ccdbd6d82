"""`POST /v1/completions`: texts or token lists in, continued as they are; `text_completion` out, whole or in chunks.

Owns the wire names of this route. In: a JSON object, or answer events. Out: a `GenerationRequest`, a response body, or
frames. No chat template and no parser stands between the model's text and the client. Invariants: the choice of prompt
i and its j-th answer has index i * n + j; with `echo` a choice's text begins with its prompt, and the arrays of
`logprobs` cover both. Source: OpenAI's API reference, "Completions".
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from plimsoll_runtime.contract.endpoints import COMPLETIONS as PATH
from plimsoll_runtime.contract.endpoints import HEADER_OVER_BUDGET, Route
from plimsoll_runtime.events import CallArguments, CallBegun, Echo, ReasoningDelta, TextDelta
from plimsoll_runtime.request import GenerationRequest, Prompt, TextPrompt, TokenPrompt
from plimsoll_runtime.routes.body import (
    read_switch,
    refuse,
    refuse_unsupported,
    refusing,
    unknown_fields,
    wire_values,
)
from plimsoll_runtime.routes.dialect import Answer, AnswerFacts, ChoiceAnswer, Dialect, StreamWriter
from plimsoll_runtime.routes.openai_fields import (
    ENVELOPE_NAMES,
    JUDGED_NAMES,
    UNSUPPORTED,
    WITHOUT_EFFECT,
    ending_fields,
    heading,
    read_envelope,
    usage_body,
)
from plimsoll_runtime.routes.openai_logprobs import LegacyLogprobs, joined
from plimsoll_runtime.routes.openai_stream import OpenAIStream
from plimsoll_runtime.routes.structures import FIELDS as STRUCTURE_FIELDS
from plimsoll_runtime.routes.structures import openai_structure

_JUDGED: Final = {**JUDGED_NAMES, "best_of": "best_of", "max_tokens": "requested_output_tokens"}
_UNSUPPORTED: Final[Mapping[str, tuple[Any, ...]]] = {
    **UNSUPPORTED,
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "thinking": ({"type": "disabled"},),
    "store": (False,),
}
_KNOWN: Final = frozenset(
    {"prompt", "echo", *STRUCTURE_FIELDS, *_JUDGED, *WITHOUT_EFFECT, *_UNSUPPORTED, *ENVELOPE_NAMES}
)


class Completions:
    """The dialect; it has no state."""

    route: Route = PATH

    @refusing
    def to_request(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> GenerationRequest:
        envelope = read_envelope(body)
        prompts = _read_prompts(body.get("prompt"))
        refuse_unsupported(body, _UNSUPPORTED)
        return GenerationRequest(
            route=self.route,
            model=envelope.model,
            prompt_param="prompt",
            prompts=prompts,
            structure=openai_structure(body),
            wire=wire_values(body, _JUDGED),
            over_budget=headers.get(HEADER_OVER_BUDGET),
            stream=envelope.stream,
            include_usage=envelope.include_usage,
            echo=read_switch(body, "echo"),
            unknown_fields=unknown_fields(body, _KNOWN) + envelope.unknown_options,
        )

    def to_response(self, answer: Answer, facts: AnswerFacts) -> dict[str, Any]:
        return {
            **heading(facts, "cmpl-", "text_completion"),
            "choices": [_whole_choice(choice, facts) for choice in answer.choices],
            "usage": usage_body(answer.usage),
        }

    def stream_writer(self, facts: AnswerFacts) -> StreamWriter:
        return OpenAIStream(facts, "cmpl-", "text_completion", _Choices())


class _Choices:
    """What stands in the choices of a stream; holds how far the offsets of each choice have come."""

    def __init__(self) -> None:
        self._logprobs: defaultdict[int, LegacyLogprobs] = defaultdict(LegacyLogprobs)

    def opening(self) -> None:
        return None

    def echo(self, event: Echo) -> dict[str, Any]:
        arrays = None
        if event.logprobs is not None:
            arrays = self._logprobs[event.choice].of_prompt(event.text, event.prompt_token_texts, event.logprobs)
        return {"text": event.text, "logprobs": arrays}

    def delta(self, event: TextDelta) -> dict[str, Any]:
        arrays = self._logprobs[event.choice].of_tokens(event.logprobs) if event.logprobs else None
        return {"text": event.text, "logprobs": arrays}

    def ending(self) -> dict[str, Any]:
        return {"text": "", "logprobs": None}

    def reasoning(self, event: ReasoningDelta) -> dict[str, Any]:
        raise AssertionError("reasoning stays in the text on this route")

    def call(self, event: CallBegun | CallArguments) -> dict[str, Any]:
        raise AssertionError("this route never offers a tool")


def _whole_choice(choice: ChoiceAnswer, facts: AnswerFacts) -> dict[str, Any]:
    return {
        "index": choice.choice,
        "text": choice.echo_text + choice.text,
        "logprobs": _whole_arrays(choice) if "logprobs" in facts.request.wire else None,
        **ending_fields(choice),
    }


def _whole_arrays(choice: ChoiceAnswer) -> dict[str, list[Any]]:
    arrays = LegacyLogprobs()
    if choice.echo_logprobs is None:
        return arrays.of_tokens(choice.logprobs)
    prompt = arrays.of_prompt(choice.echo_text, choice.echo_token_texts, choice.echo_logprobs)
    return joined(prompt, arrays.of_tokens(choice.logprobs))


def _read_prompts(value: Any) -> tuple[Prompt, ...]:
    """A text, texts, token ids, or lists of token ids; never two kinds in one list.

    An empty text is passed on: whether the model can begin from nothing, admission knows.
    """
    match value:
        case None:
            raise refuse(
                "missing_required_parameter", "prompt is required: give a text or a list of token ids", "prompt"
            )
        case str():
            return (TextPrompt(value),)
        case []:
            raise refuse("invalid_value", "prompt is an empty list: give at least one text or token id", "prompt")
        case list():
            return _prompts_of_list(value)
    raise _wrong_prompt()


def _prompts_of_list(values: list[Any]) -> tuple[Prompt, ...]:
    if _are_token_ids(values):
        return (TokenPrompt(tuple(values)),)
    if all(isinstance(value, str) for value in values):
        return tuple(TextPrompt(value) for value in values)
    if not all(isinstance(value, list) and _are_token_ids(value) for value in values):
        raise _wrong_prompt()
    for index, value in enumerate(values):
        if not value:
            raise refuse("invalid_value", f"prompt.{index} is an empty list: give at least one token id", "prompt")
    return tuple(TokenPrompt(tuple(value)) for value in values)


def _are_token_ids(values: list[Any]) -> bool:
    return all(type(value) is int for value in values)


def _wrong_prompt() -> Exception:
    kinds = "a string, a list of strings, a list of token ids, or a list of lists of token ids"
    return refuse("invalid_type", f"prompt must be {kinds}, and not a mixture", "prompt")


COMPLETIONS: Final[Dialect] = Completions()
