"""How `/v1/responses` continues an earlier answer: `previous_response_id` on the way in, `store` on the way out.

Owns what a stored conversation is: all messages up to and with the answer, without the instructions of that request,
which the API does not carry over. In: a converted request and the store. Out: the request with the earlier messages
before its own. It knows no HTTP. With several replicas the store is per pod (response_store.py), so an id is found only
by the pod that gave it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.refusal import Refusal
from plimsoll_runtime.request import ChatPrompt, GenerationRequest
from plimsoll_runtime.routes.content import call_arguments
from plimsoll_runtime.routes.dialect import Answer, ChoiceAnswer
from plimsoll_runtime.routes.openai_fields import function_call
from plimsoll_runtime.routes.response_store import ResponseStore


class ResponsesMemory:
    """The memory of one server over its store: what the generation handler asks (generate.Memory)."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    def resolve(self, request: GenerationRequest, tenant: str) -> GenerationRequest | Refusal:
        """The request with its whole conversation: instructions first, then what was said before, then the new input.

        Gives the request itself where it continues nothing, and a Refusal where the id is not (or no longer) known.
        """
        previous_id = request.dialect_options["previous_response_id"]
        if previous_id is None:
            return request
        earlier = self._store.conversation(tenant, previous_id)
        if earlier is None:
            return _previous_not_found(previous_id)
        instructions, said = _split(request)
        return replace(request, prompts=(replace(_prompt(request), messages=(*instructions, *earlier, *said)),))

    def keeps(self, request: GenerationRequest) -> bool:
        """Whether the answer is to be stored: unless the request said `store: false`."""
        return bool(request.dialect_options["store"])

    def remember(self, request: GenerationRequest, tenant: str, answer: Answer, body: Mapping[str, Any]) -> None:
        """Stores the answer to what `resolve` gave, where it `keeps` it.

        A response too large for the store is not kept: its id is unknown afterwards, as after its time to live.
        """
        if self.keeps(request):
            _, said = _split(request)
            self._store.put(tenant, body, [*said, _answered(answer.choices[0])])


def _answered(choice: ChoiceAnswer) -> dict[str, Any]:
    """The answer as a message of the conversation, with the ids under which its calls are answered."""
    reasoning = {} if choice.reasoning is None else {"reasoning_content": choice.reasoning}
    if not choice.calls:
        return {"role": "assistant", "content": choice.text, **reasoning}
    calls = [
        function_call(call.call_id, call.name, call_arguments(call.arguments, "arguments")) for call in choice.calls
    ]
    return {"role": "assistant", "content": choice.text if choice.text else None, "tool_calls": calls, **reasoning}


def _previous_not_found(previous_id: str) -> Refusal:
    param = "previous_response_id"
    message = (
        f"{param}: response {previous_id[:80]!r} not found: it was not stored, its time is over, or another replica "
        "answered it: send the whole conversation as input instead"
    )
    return Refusal(code="previous_response_not_found", message=message, param=param)


def _split(request: GenerationRequest) -> tuple[tuple[Mapping[str, Any], ...], tuple[Mapping[str, Any], ...]]:
    """The message of the instructions, if there is one, and all others."""
    messages = _prompt(request).messages
    num_instructions = 1 if request.dialect_options["instructions"] else 0
    return messages[:num_instructions], messages[num_instructions:]


def _prompt(request: GenerationRequest) -> ChatPrompt:
    prompt = request.prompts[0]
    assert isinstance(prompt, ChatPrompt), "the responses dialect makes chat prompts only"
    return prompt
