"""A form binds the answer, and what is reasoned before it is free: in every mode, with a budget, and after a tag that
the template has opened or the model opens itself."""

import json
from typing import Any

import pytest

from doubles.server import MODEL, ScriptedServer, answers, scripted_server
from plimsoll_runtime.contract.endpoints import CHAT_COMPLETIONS, MESSAGES

OPENED = "{% for message in messages %}{{ message.content }}{% endfor %}<think>\n"
PIECES = ["<think>", "why {", "not", "</think>", "aaaa"]
FORM: dict[str, Any] = {"structured_outputs": {"regex": "[0-9]{3}!"}}


def server(pieces: list[str], **settings: Any) -> Any:
    return scripted_server(
        lambda vocabulary: answers(vocabulary, pieces),
        pieces=[*pieces, *PIECES],
        **{"context_length": 2048, "reasoning_parser": "qwen3", **settings},
    )


def asked(running: ScriptedServer, **fields: Any) -> Any:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 40,
        "seed": 1,
        **FORM,
        **fields,
    }
    return running.client.post(CHAT_COMPLETIONS, json=body)


def fits(text: str) -> bool:
    return len(text) == 4 and text[:3].isdigit() and text[3] == "!"


OPENINGS = [("by the model", PIECES, None), ("by the template", PIECES[1:], OPENED)]


@pytest.mark.parametrize(("pieces", "template"), [row[1:] for row in OPENINGS], ids=[row[0] for row in OPENINGS])
def test_reasoning_comes_first_and_is_free(pieces: list[str], template: str | None) -> None:
    with server(pieces, **({} if template is None else {"template": template})) as running:
        choice = asked(running).json()["choices"][0]
        assert choice["message"]["reasoning_content"] == "why {not"
        assert fits(choice["message"]["content"])
        assert choice["finish_reason"] == "stop"
        lines = asked(running, stream=True).text.splitlines()
        deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines if line.startswith("data: {")]
        assert "".join(delta.get("content") or "" for delta in deltas) == choice["message"]["content"]


def test_an_answer_may_also_do_without_reasoning() -> None:
    with server(["aaaa"]) as running:
        message = asked(running).json()["choices"][0]["message"]
        assert fits(message["content"])
        assert not message.get("reasoning_content")


def test_nothing_ends_inside_reasoning() -> None:
    """The end of an answer that has a form is its own: reasoning cannot be all."""
    with server(["<think>", "hm"]) as running:
        choice = asked(running, max_tokens=12).json()["choices"][0]
        assert choice["finish_reason"] == "length"
        assert choice["message"]["content"] in (None, "")


def test_a_budget_of_reasoning_and_a_form() -> None:
    pieces = ["<think>", *["why {"] * 2000]
    with server(pieces) as running:
        thinking = {"type": "enabled", "budget_tokens": 1024}
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1400}
        answer = running.client.post(MESSAGES, json={**body, **FORM, "thinking": thinking}).json()
        kinds = [block["type"] for block in answer["content"]]
        assert kinds == ["thinking", "text"]
        assert fits(answer["content"][1]["text"])
        assert answer["usage"]["output_tokens"] == 1024 + 5
