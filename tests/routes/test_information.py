"""The routes that tell: what they say, and what they say to a client that asks them wrongly."""

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from doubles.server import MODEL, ScriptedServer, scripted_server
from plimsoll_runtime.contract import endpoints
from routes.four_routes import CHAT, COMPLETIONS, MESSAGES, RESPONSES, ROUTES, ask, body_of, error_of, every_route

CONTEXT, DEFAULT, LIMIT = 64, 12, 24
NUM_TOKENS = 259


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with scripted_server(context_length=CONTEXT, max_output_default=DEFAULT, max_output_limit=LIMIT) as server:
        yield server


_NO_TOKENS: list[Any] = [["a"], [1.5], [True], [None], [[1]], [{}], [-1], [NUM_TOKENS], [10**30], [], {}, "1", 1, None]
_NO_TEXT: list[Any] = [5, None, [], ["a"], {}, True, ""]
_NO_ROUTE: list[Any] = [None, 5, [CHAT], {}, "/v1/embeddings", "/v1/chat/completions/", ""]
_NO_REQUEST: list[Any] = [None, 5, [], "x"]

WRONG: list[tuple[str, dict[str, Any], str]] = [
    *[(endpoints.DETOKENIZE, {"tokens": tokens}, "tokens") for tokens in _NO_TOKENS],
    (endpoints.DETOKENIZE, {}, "tokens"),
    (endpoints.DETOKENIZE, {"tokens": [1], "model": 5}, "model"),
    *[(endpoints.TOKENIZE, {"prompt": prompt}, "prompt") for prompt in _NO_TEXT],
    (endpoints.TOKENIZE, {}, "prompt"),
    (endpoints.TOKENIZE, {"prompt": "a", "model": []}, "model"),
    (endpoints.TOKENIZE, {"prompt": "a", "add_special_tokens": False}, "add_special_tokens"),
    (endpoints.TOKENIZE, {"prompt": "a", "return_token_strs": True}, "return_token_strs"),
    *[(endpoints.DECIDE_BUDGET, {"route": route, "request": {}}, "route") for route in _NO_ROUTE],
    *[(endpoints.DECIDE_BUDGET, {"route": CHAT, "request": request}, "request") for request in _NO_REQUEST],
    (endpoints.COUNT_TOKENS, {"model": MODEL}, "messages"),
    (endpoints.COUNT_TOKENS, {"model": 5, "messages": [{"role": "user", "content": "x"}]}, "model"),
    (endpoints.COUNT_TOKENS, {"model": MODEL, "messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
    (endpoints.COUNT_TOKENS, {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "tools": [1]}, "tools"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "param"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_question_is_400(server: ScriptedServer, path: str, body: dict[str, Any], param: str) -> None:
    """A token that is no number was a 500, `true` was the token 1, and options that are not built were ignored."""
    error_of(server.client.post(path, json=body), path, 400, param)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (endpoints.TOKENIZE, {"prompt": "a", "model": "other"}),
        (endpoints.DETOKENIZE, {"tokens": [97], "model": "other"}),
        (endpoints.COUNT_TOKENS, {"model": "other", "messages": [{"role": "user", "content": "x"}]}),
    ],
)
def test_another_model_is_404(server: ScriptedServer, path: str, body: dict[str, Any]) -> None:
    error_of(server.client.post(path, json=body), path, 404, "model")


@pytest.mark.parametrize("text", ["a", "é🌍", "a\x00b", "x" * 500])
def test_text_becomes_tokens_and_comes_back(server: ScriptedServer, text: str) -> None:
    """Both work beyond the context length: they plan a request, they are none."""
    said = server.client.post(endpoints.TOKENIZE, json={"prompt": text, "model": MODEL, "unknown": 1}).json()
    assert said == {"tokens": list(text.encode()), "count": len(text.encode()), "max_model_len": CONTEXT}
    back = server.client.post(endpoints.DETOKENIZE, json={"tokens": said["tokens"]}).json()
    assert back == {"prompt": text}


def test_tokens_are_counted_as_messages_would(server: ScriptedServer) -> None:
    body = {"model": MODEL, "system": "abc", "messages": [{"role": "user", "content": "hello"}]}
    assert server.client.post(endpoints.COUNT_TOKENS, json=body).json() == {"input_tokens": 8}
    assert server.client.post(endpoints.COUNT_TOKENS + "?beta=true", json=body).json() == {"input_tokens": 8}


def test_both_kinds_of_clients_read_the_models(server: ScriptedServer) -> None:
    """B10: a length that is advertised is one that a request may have. Both APIs list models under the same path."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x") as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).owned_by == "plimsoll"
    with anthropic.Anthropic(base_url=server.url, api_key="x") as client:
        (model,) = client.models.list()
        assert (model.id, model.max_tokens) == (MODEL, LIMIT)
    said = server.client.get(f"{endpoints.MODELS}/{MODEL}").json()
    assert (said["context_length"], said["max_output_default"], said["max_output_limit"]) == (CONTEXT, DEFAULT, LIMIT)


@pytest.mark.parametrize("name", ["other", "", "a/b", "..", "%00", "x" * 5000, "SCRIPTED"])
def test_an_unknown_model_is_not_found(server: ScriptedServer, name: str) -> None:
    error = error_of(server.client.get(f"{endpoints.MODELS}/{name}"), endpoints.MODELS, 404)
    assert error["code"] in {"model_not_found", "not_found"}
    assert len(error["message"]) < 300


def test_the_budget_shows_limits_and_load(server: ScriptedServer) -> None:
    said = server.client.get(endpoints.BUDGET).json()
    assert said["load"].keys() == {"running", "waiting", "paused", "oldest_wait_seconds"}
    expected = {
        "model": MODEL,
        "context_length": CONTEXT,
        "max_output_default": DEFAULT,
        "max_output_limit": LIMIT,
        "over_budget": "clamp",
        "running_slots": 4,
        "kv_capacity_tokens": 4 * CONTEXT,
        "kernels": {"name": "scripted"},
    }
    assert said.items() >= expected.items()


@every_route
@pytest.mark.parametrize(
    ("fields", "status"),
    [({"model": "other"}, 404), ({"LIMIT": 0}, 400), ({"temperature": 9}, 400), ({"tools": [1]}, 400), ({}, 200)],
    ids=["model", "limit", "temperature", "tools", "good"],
)
def test_a_budget_question_is_answered_with_the_routes_own_refusal(
    server: ScriptedServer, route: str, fields: dict[str, Any], status: int
) -> None:
    """The question itself was fine, so it is 200; what the route would send stands inside, whole."""
    body = body_of(route, fields)
    said = server.client.post(endpoints.DECIDE_BUDGET, json={"route": route, "request": body})
    answer = ask(server.client, route, fields)
    assert said.status_code == 200
    assert answer.status_code == status
    if status == 200:
        assert said.json()["admitted"] is True
        return
    assert said.json()["status"] == status
    mine, theirs = said.json()["error"], answer.json()
    assert mine.pop("request_id", None) is None or theirs.pop("request_id")
    assert mine == theirs


def test_a_budget_question_knows_the_conversation_before(server: ScriptedServer) -> None:
    """It counted only the new input, and admitted the continuation of a response that does not exist."""
    first = ask(server.client, RESPONSES, {"input": "hello", "LIMIT": 3}).json()["id"]
    more = body_of(RESPONSES, {"input": "you", "previous_response_id": first})
    said = server.client.post(endpoints.DECIDE_BUDGET, json={"route": RESPONSES, "request": more}).json()
    assert said["prompt_tokens"] == len("hello") + 3 + len("you")
    unknown = {"route": RESPONSES, "request": body_of(RESPONSES, {"previous_response_id": "resp_none"})}
    said = server.client.post(endpoints.DECIDE_BUDGET, json=unknown).json()
    assert (said["admitted"], said["status"]) == (False, 400)
    assert said["error"]["error"]["code"] == "previous_response_not_found"


def test_a_budget_question_leaves_no_trace(server: ScriptedServer) -> None:
    steps = server.runner.num_steps
    for route in ROUTES:
        server.client.post(endpoints.DECIDE_BUDGET, json={"route": route, "request": body_of(route)})
    assert server.runner.num_steps == steps


def test_everything_says_that_it_is_loading() -> None:
    """Live, not ready, 503 (529 on messages) with Retry-After; a wrong body is still a 400."""
    with scripted_server(is_loaded=False) as server:
        client = server.client
        assert client.get(endpoints.LIVEZ).json() == {"status": "live"}
        for path in (endpoints.READYZ, endpoints.HEALTH):
            assert (client.get(path).status_code, client.get(path).json()) == (503, {"status": "loading"})
        questions: dict[str, dict[str, Any]] = {
            endpoints.TOKENIZE: {"prompt": "a"},
            endpoints.DETOKENIZE: {"tokens": [1]},
            endpoints.COUNT_TOKENS: body_of(MESSAGES),
            endpoints.DECIDE_BUDGET: {"route": COMPLETIONS, "request": body_of(COMPLETIONS)},
            **{route: body_of(route) for route in ROUTES},
        }
        responses = [(path, client.post(path, json=body)) for path, body in questions.items()]
        for path in (endpoints.MODELS, f"{endpoints.MODELS}/{MODEL}", endpoints.BUDGET):
            responses.append((path, client.get(path)))
        for path, response in responses:
            error_of(response, path, 529 if path.startswith(MESSAGES) else 503)
            assert int(response.headers["retry-after"]) >= 1
        error_of(client.post(endpoints.TOKENIZE, json={}), endpoints.TOKENIZE, 400)
        assert b"plimsoll_refusals_total" in client.get(endpoints.METRICS).content
