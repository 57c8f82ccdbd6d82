"""What ends an answer, on every route, plain and streamed: stop strings across tokens, end tokens, and what overrides.

A row is a script of pieces (one token each), what the request says, and what must come out of it.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from doubles.scripted_model import Script
from doubles.server import MODEL, ScriptedServer, Vocabulary, scripted_server
from plimsoll_runtime.contract import endpoints
from routes.four_routes import ASK

END = "END"
Row = tuple[list[str | bytes], dict[str, Any], str, str, int]
# pieces, body fields, visible text, why it ended, output tokens
ROWS: Mapping[str, Row] = {
    "B50-across-tokens": (["Hello", "\nUs", "er", ": next"], {"stop": ["\nUser:"]}, "Hello", "stop_sequence", 4),
    "B50-false-start": (["a", "\nUs", "ual end"], {"stop": ["\nUser:"]}, "a\nUsual end", "end", 4),
    "B50-held-at-the-limit": (["a", "\nUs"], {"stop": ["\nUser:"], "limit": 2}, "a\nUs", "length", 2),
    "B54-inside-a-word": (["A B ", "STO", "P C"], {"stop": ["STOP"]}, "A B ", "stop_sequence", 3),
    "B54-earliest-wins": (["one two", " three"], {"stop": ["three", "two"]}, "one ", "stop_sequence", 1),
    "B60-no-half-character": (["ok", b"\xe3\x80", b"\x82", "x"], {"stop": ["\u3002"]}, "ok", "stop_sequence", 3),
    "B60-composed-is-not-decomposed": (["e\u0301", "x"], {"stop": ["\u00e9"]}, "e\u0301x", "end", 3),
    "B56-end-token": (["a", "b"], {}, "ab", "end", 3),
    "B56-ignored-end-token": (["a", END, "b", END, "c"], {"ignore_eos": True, "limit": 5}, "abc", "length", 5),
    "B56-own-stop-with-ignored-end": (
        ["a", END, "bSTOP"],
        {"ignore_eos": True, "stop": ["STOP"]},
        "ab",
        "stop_sequence",
        3,
    ),
    "B02-end-token-as-the-last": (["a", "b"], {"limit": 3}, "ab", "end", 3),
    "B02-end-token-one-too-late": (["a", "b"], {"limit": 2}, "ab", "length", 2),
    "B53-not-before-min-tokens": (
        ["x", "a", "b", "c", "a", "d"],
        {"min_tokens": 4, "stop": ["a"]},
        "xabc",
        "stop_sequence",
        5,
    ),
    "B55-duplicates": (["b", "a"], {"stop": ["a", "a"]}, "b", "stop_sequence", 2),
    "B55-null": (["b", "a"], {"stop": None}, "ba", "end", 3),
    "B55-none": (["b", "a"], {"stop": []}, "ba", "end", 3),
    "B57-cut-inside-a-character": (["ok ", b"\xf0\x9f", b"\x8c\x8d"], {"limit": 2}, "ok \ufffd", "length", 2),
    "B57-emoji": (["ok ", b"\xf0\x9f", b"\x8c\x8d", b" \xe4\xbd", b"\xa0"], {}, "ok \U0001f30d \u4f60", "end", 6),
}
REASONS: Mapping[str, Mapping[str, str]] = {
    "openai": {"stop_sequence": "stop", "end": "stop", "length": "length"},
    endpoints.MESSAGES: {"stop_sequence": "stop_sequence", "end": "end_turn", "length": "max_tokens"},
    endpoints.RESPONSES: {"stop_sequence": "completed", "end": "completed", "length": "incomplete"},
}


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    """The prompt is the row's name, and the answer its pieces."""
    pieces = [piece for row in ROWS.values() for piece in row[0] if piece != END]

    def script(vocabulary: Vocabulary) -> Script:
        written = {
            name: [vocabulary.end_id if piece == END else vocabulary.ids([piece])[0] for piece in row[0]]
            for name, row in ROWS.items()
        }

        def write(prompt: tuple[int, ...], position: int) -> int:
            ids = written.get(bytes(prompt).decode(), [])
            return ids[position] if position < len(ids) else vocabulary.end_id

        return write

    with scripted_server(script, pieces=pieces, context_length=128) as server:
        yield server


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("route", endpoints.GENERATION_ROUTES)
@pytest.mark.parametrize("name", ROWS)
def test_an_answer_ends_where_it_should(server: ScriptedServer, name: str, route: str, stream: bool) -> None:
    _, fields, text, why, output_tokens = ROWS[name]
    answer = server.client.post(route, json=_body(route, name, dict(fields), stream))
    assert answer.status_code == 200, answer.text
    if stream:
        seen = _streamed(route, answer.text)
    else:
        seen = (_text(route, answer.json()), _reason(route, answer.json()), ASK[route].output_tokens(answer.json()))
    expected = REASONS.get(route, REASONS["openai"])[why]
    assert seen == (text, expected, output_tokens)


def _body(route: str, name: str, fields: dict[str, Any], stream: bool) -> dict[str, Any]:
    ask = ASK[route]
    if "limit" in fields:
        fields[ask.limit_field] = fields.pop("limit")
    if route == endpoints.MESSAGES and "stop" in fields:
        fields["stop_sequences"] = fields.pop("stop")
    if stream and route in (endpoints.CHAT_COMPLETIONS, endpoints.COMPLETIONS):
        fields["stream_options"] = {"include_usage": True}
    return {"model": MODEL, "stream": stream, **ask.body(name), **fields}


def _text(route: str, body: dict[str, Any]) -> str:
    if route == endpoints.CHAT_COMPLETIONS:
        return str(body["choices"][0]["message"]["content"])
    if route == endpoints.COMPLETIONS:
        return str(body["choices"][0]["text"])
    if route == endpoints.MESSAGES:
        return "".join(block["text"] for block in body["content"])
    return "".join(part["text"] for item in body["output"] for part in item["content"])


def _reason(route: str, body: dict[str, Any]) -> str:
    if route == endpoints.MESSAGES:
        return str(body["stop_reason"])
    return str(body["status"] if route == endpoints.RESPONSES else body["choices"][0]["finish_reason"])


def _streamed(route: str, text: str) -> tuple[str, str, int]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    if route == endpoints.RESPONSES:
        deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        last = events[-1]["response"]
        return "".join(deltas), last["status"], last["usage"]["output_tokens"]
    if route == endpoints.MESSAGES:
        deltas = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
        last = next(event for event in events if event["type"] == "message_delta")
        return "".join(deltas), last["delta"]["stop_reason"], last["usage"]["output_tokens"]
    choices = [event["choices"][0] for event in events if event["choices"]]
    said = [choice["delta"].get("content", "") if "delta" in choice else choice["text"] for choice in choices]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    return "".join(said), reasons[0], events[-1]["usage"]["completion_tokens"]
