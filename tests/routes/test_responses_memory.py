"""How an answer is remembered and continued."""

from typing import Any

from plimsoll_runtime.refusal import Refusal
from plimsoll_runtime.request import ChatPrompt, GenerationRequest
from plimsoll_runtime.routes.response_store import ResponseStore
from plimsoll_runtime.routes.responses import RESPONSES
from plimsoll_runtime.routes.responses_memory import ResponsesMemory
from routes.one_choice import answer_of, facts_of

FIRST_ID = "resp_AAAABBBBCCCCDDDDEEEEFFFF"


def make_store() -> ResponseStore:
    return ResponseStore(lambda: 0.0)


def request_of(**fields: Any) -> GenerationRequest:
    request = RESPONSES.to_request({"model": "m", "input": "hi", **fields}, {})
    assert isinstance(request, GenerationRequest), request
    return request


def answer(store: ResponseStore, request: GenerationRequest, text: str = "Hello", tenant: str = "t") -> dict[str, Any]:
    said = answer_of(text)
    body = RESPONSES.to_response(said, facts_of(request))
    ResponsesMemory(store).remember(request, tenant, said, body)
    return body


def said_in(request: GenerationRequest | Refusal) -> list[tuple[str, str]]:
    assert isinstance(request, GenerationRequest), request
    prompt = request.prompts[0]
    assert isinstance(prompt, ChatPrompt)
    return [(message["role"], message["content"]) for message in prompt.messages]


def test_a_request_that_continues_nothing_stays_as_it_is() -> None:
    request = request_of()
    assert ResponsesMemory(make_store()).resolve(request, "t") is request


def test_a_conversation_goes_on() -> None:
    store = make_store()
    answer(store, request_of())
    second = ResponsesMemory(store).resolve(request_of(input="And?", previous_response_id=FIRST_ID), "t")
    assert said_in(second) == [("user", "hi"), ("assistant", "Hello"), ("user", "And?")]


def test_a_third_turn_has_both_before_it() -> None:
    store = make_store()
    answer(store, request_of())
    second = ResponsesMemory(store).resolve(request_of(input="And?", previous_response_id=FIRST_ID), "t")
    assert isinstance(second, GenerationRequest)
    answer(store, second, "Bye")
    third = ResponsesMemory(store).resolve(request_of(input="Oh.", previous_response_id=FIRST_ID), "t")
    assert [text for _, text in said_in(third)] == ["hi", "Hello", "And?", "Bye", "Oh."]


def test_instructions_are_not_carried_over() -> None:
    store = make_store()
    answer(store, request_of(instructions="Be brief."))
    request = request_of(input="And?", instructions="Be long.", previous_response_id=FIRST_ID)
    assert said_in(ResponsesMemory(store).resolve(request, "t")) == [
        ("system", "Be long."),
        ("user", "hi"),
        ("assistant", "Hello"),
        ("user", "And?"),
    ]


def test_template_arguments_are_those_of_the_new_request() -> None:
    store = make_store()
    answer(store, request_of(chat_template_kwargs={"style": "old"}))
    request = request_of(chat_template_kwargs={"style": "new"}, previous_response_id=FIRST_ID)
    resolved = ResponsesMemory(store).resolve(request, "t")
    assert isinstance(resolved, GenerationRequest)
    assert isinstance(resolved.prompts[0], ChatPrompt)
    assert resolved.prompts[0].template_arguments == {"style": "new"}


def test_an_unknown_id_is_refused() -> None:
    """Never stored, another tenant's, or stored under `store: false`: all the same to the client."""
    store = make_store()
    answer(store, request_of(store=False))
    answer(store, request_of(), tenant="alice")
    refusal = ResponsesMemory(store).resolve(request_of(previous_response_id=FIRST_ID), "bob")
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.param) == ("previous_response_not_found", "previous_response_id")


def test_store_false_keeps_nothing() -> None:
    store = make_store()
    answer(store, request_of(store=False))
    assert len(store) == 0


def test_the_stored_object_is_the_answer() -> None:
    store = make_store()
    body = answer(store, request_of())
    assert store.response("t", FIRST_ID) == body
