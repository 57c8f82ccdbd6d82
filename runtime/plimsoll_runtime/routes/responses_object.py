"""The response object of `/v1/responses`, whole or at some moment of its stream.

Owns OpenAI's shape of it. In: the facts of an answer and as much of the answer as there is. Out: JSON values. It does
not know events. Invariant: the object in the last event of a stream is the body of the plain answer.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from plimsoll_runtime.events import AnswerReason, TextLogprob, Usage
from plimsoll_runtime.routes.dialect import Answer, AnswerFacts, Call, ChoiceAnswer, Reasoning, finish_detail_body
from plimsoll_runtime.routes.openai_fields import call_id_field
from plimsoll_runtime.routes.openai_logprobs import chat_logprobs

ItemStatus = Literal["in_progress", "completed", "incomplete"]


def finished_response(answer: Answer, facts: AnswerFacts) -> dict[str, Any]:
    """The body of a plain answer: `completed`, or `incomplete` where a limit ended it."""
    choice = answer.choices[0]
    body = response_object(facts, item_status(choice.reason), _output(choice, facts))
    body["usage"] = _usage_body(answer.usage)
    return body | _limit_fields(choice)


def _output(choice: ChoiceAnswer, facts: AnswerFacts) -> list[dict[str, Any]]:
    """Messages, calls and reasoning in the order in which they came. A limit cuts the last one, where nothing follows
    it; log probabilities are those of the whole answer and stand with the first message."""
    parts = list(choice.parts()) or [""]
    logprobs = choice.logprobs
    output: list[dict[str, Any]] = []
    for index, part in enumerate(parts):
        status = item_status(choice.reason) if index == len(parts) - 1 else "completed"
        match part:
            case Call():
                output.append(call_item(part.call_id, part.name, part.arguments, "completed"))
            case Reasoning():
                item_id = reasoning_id(facts, _count(output, "reasoning"))
                output.append(reasoning_item(item_id, status, [reasoning_part(part.text)]))
            case str():
                content = [text_part(part, logprobs)]
                output.append(message_item(facts, _count(output, "message"), status, content))
                logprobs = ()
    return output


def _count(output: Iterable[Mapping[str, Any]], kind: str) -> int:
    return sum(item["type"] == kind for item in output)


def failed_response(facts: AnswerFacts, message: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    """The object of `response.failed`, with what was said before. `server_error` is of the API's closed list."""
    body = response_object(facts, "failed", output)
    body["error"] = {"code": "server_error", "message": message}
    return body


def response_object(facts: AnswerFacts, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    """The object with what is known from the start; nothing is used and no limit has ended it yet."""
    request = facts.request
    options = request.dialect_options
    return {
        "id": f"resp_{facts.request_id}",
        "object": "response",
        "created_at": facts.created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": options["instructions"],
        "max_output_tokens": _as_sent(facts, "requested_output_tokens"),
        "max_tool_calls": None,
        "model": facts.model,
        "output": output,
        "previous_response_id": options["previous_response_id"],
        "store": options["store"],
        "temperature": _as_sent(facts, "temperature"),
        "top_p": _as_sent(facts, "top_p"),
        "usage": None,
        **options["echoed"],
    }


def message_item(facts: AnswerFacts, message: int, status: ItemStatus, content: list[dict[str, Any]]) -> dict[str, Any]:
    """The `message`-th text of an answer, from 0. An empty answer has one too, with an empty text."""
    return {
        "id": message_id(facts, message),
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content,
    }


def message_id(facts: AnswerFacts, message: int) -> str:
    return f"msg_{facts.request_id}" + (f"_{message}" if message else "")


def reasoning_id(facts: AnswerFacts, ordinal: int) -> str:
    return f"rs_{facts.request_id}" + (f"_{ordinal}" if ordinal else "")


def reasoning_item(item_id: str, status: ItemStatus, content: list[dict[str, Any]]) -> dict[str, Any]:
    """What the model thought, as it wrote it: there is no summary, and nothing is encrypted."""
    return {"id": item_id, "type": "reasoning", "status": status, "summary": [], "content": content}


def reasoning_part(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}


def call_item_id(call_id: str) -> str:
    return f"fc_{call_id}"


def call_item(call_id: str, name: str, arguments: str, status: ItemStatus) -> dict[str, Any]:
    """A call of a function. Its result comes back under `call_id`; `id` is that of the item."""
    return {
        "id": call_item_id(call_id),
        "type": "function_call",
        "status": status,
        "call_id": call_id_field(call_id),
        "name": name,
        "arguments": arguments,
    }


def text_part(text: str, logprobs: Iterable[TextLogprob] = ()) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprob_entries(logprobs)}


def logprob_entries(logprobs: Iterable[TextLogprob]) -> list[Any]:
    """The entries have the shape that chat completions has under `logprobs.content`."""
    return list(chat_logprobs(logprobs)["content"])


def item_status(reason: AnswerReason) -> Literal["completed", "incomplete"]:
    return "incomplete" if reason == "length" else "completed"


def _limit_fields(choice: ChoiceAnswer) -> dict[str, Any]:
    """`max_output_tokens` is the API's only word for a limit of size or time; `finish_detail` says which it was."""
    if choice.reason != "length":
        return {}
    detail = {} if choice.detail is None else {"finish_detail": finish_detail_body(choice.detail)}
    return {"incomplete_details": {"reason": "max_output_tokens"}, **detail}


def _usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }


def _as_sent(facts: AnswerFacts, name: str) -> Any:
    wire = facts.request.wire.get(name)
    return None if wire is None else wire.value
