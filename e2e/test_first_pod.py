"""A manifest is applied to a real cluster, and every route of the pod that comes answers through the Service."""

import json
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from openai import OpenAI

from live_site import Site
from operator_pod import operator_away

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

QUESTION = "Name three colours."
MODEL = "smollm2"


def ask_every_route(address: str) -> dict[str, int]:
    """Route -> how many tokens it answered, through the clients that people use."""
    openai = OpenAI(base_url=f"{address}/v1", api_key="none", timeout=120)
    anthropic = Anthropic(base_url=address, api_key="none", timeout=120)
    messages: Any = [{"role": "user", "content": QUESTION}]
    chat = openai.chat.completions.create(model=MODEL, messages=messages, max_tokens=8)
    completion = openai.completions.create(model=MODEL, prompt=QUESTION, max_tokens=8)
    response = openai.responses.create(model=MODEL, input=QUESTION, max_output_tokens=16)
    message = anthropic.messages.create(model=MODEL, messages=messages, max_tokens=8)
    return {
        "chat": chat.usage.completion_tokens if chat.usage else 0,
        "completions": completion.usage.completion_tokens if completion.usage else 0,
        "responses": response.usage.output_tokens if response.usage else 0,
        "messages": message.usage.output_tokens,
    }


def granted(address: str) -> dict[str, int]:
    """Route -> how many tokens a request gets that names no limit."""
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": QUESTION}]},
        "/v1/completions": {"prompt": QUESTION},
        "/v1/responses": {"input": QUESTION},
        "/v1/messages": {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 100_000},
    }
    given = {}
    for route, body in bodies.items():
        asked = {"route": route, "request": {"model": MODEL, **body}}
        given[route] = httpx.post(f"{address}/v1/budget", json=asked, timeout=30).json()
    return {route: answer["max_output_tokens"] for route, answer in given.items()}


def test_apply_and_every_route_answers(site: Site) -> None:
    site.apply()
    site.wait_ready()
    answers = ask_every_route(site.address())
    assert len(answers) == 4
    assert all(1 <= number <= 16 for number in answers.values()), answers
    status = site.server()["status"]
    assert status["budget"]["effective"] == status["budget"]["declared"]
    (replica,) = status["replicaBudgets"]
    assert replica["consistent"] is True
    table = site.kubectl("get", "infsrv").splitlines()
    assert table[0].split()[:4] == ["NAME", "READY", "REASON", "REPLICAS"]
    assert table[1].split()[:4] == ["smollm2", "True", "Ready", "1"]


def test_a_changed_default_reaches_every_route_of_every_replica(site: Site) -> None:
    """Before, three of four routes kept a default of their own."""
    site.apply(replicas=2)
    site.wait_ready()
    default = {"/v1/chat/completions", "/v1/completions", "/v1/responses"}
    for wanted in (512, 100):
        site.apply(replicas=2, maxOutput={"default": wanted, "limit": 1024})
        site.wait_ready()
        pods = site.pods()
        assert len([pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]) == 2
        for pod in pods:
            if "deletionTimestamp" not in pod["metadata"]:
                answers = granted(f"http://{pod['status']['podIP']}:8000")
                assert answers == {**dict.fromkeys(default, wanted), "/v1/messages": 1024}


def test_a_server_goes_with_its_children_while_the_operator_is_down(site: Site) -> None:
    """B96. Before, the framework's finalizer kept the object until the operator came back."""
    site.apply()
    site.wait(lambda: len(site.pods()) == 1, lambda: "no pod came")
    with operator_away(site.cluster):
        site.kubectl("delete", "infsrv/smollm2", "--timeout=30s")
        kinds = "deployment,service,serviceaccount,networkpolicy"
        left = ["get", kinds, "--selector=plimsoll.dev/server=smollm2", "--output=json"]
        site.wait(lambda: not json.loads(site.kubectl(*left))["items"], lambda: "children are left", 90)
