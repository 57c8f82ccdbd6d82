"""Prompts that a client gets wrong, or that only look wrong: conversations, parts and token ids on each route."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from doubles.scripted_model import Script
from doubles.server import ScriptedServer, scripted_server
from plimsoll_runtime.contract import endpoints
from routes.four_routes import ASK, CHAT, COMPLETIONS, MESSAGES, RESPONSES, ask, name_of, refused_alike

NUM_TOKENS = 259
HUGE = 10**30
CHATS = (CHAT, MESSAGES, RESPONSES)


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as server:
        yield server


def conversation(route: str, *turns: Any) -> dict[str, Any]:
    """Pairs of role and content, or whole messages, under the route's own name."""
    messages = [{"role": turn[0], "content": turn[1]} if isinstance(turn, tuple) else turn for turn in turns]
    return {ASK[route].prompt_param: messages}


def text(content: str) -> dict[str, str]:
    return {"type": "text", "text": content}


_NO_TEXT: list[Any] = [[], [None], [5], [{}], [{"type": "text"}], [{"type": "text", "text": 5}], 5, {}, None]
_NO_TOKENS: list[Any] = [
    [-1],
    [[-1]],
    [999999],
    [NUM_TOKENS],
    [HUGE],
    [1, "a"],
    [1.5],
    [True],
    [[1], "a"],
    [[1], [None]],
]
_NO_CONVERSATION: list[Any] = [[], None, {}, 5, [{}], [None], [{"role": "robot", "content": "x"}], [{"role": ["user"]}]]
_PARTS = ("image_url", "image", "input_image", "input_audio", "document", "file", "hologram")
_ITEMS = ("item_reference", "web_search_call", "computer_call", "hologram")
_PICTURE = {"image_url": {"url": "http://127.0.0.1:9/x.png"}, "source": {"type": "url", "url": "http://127.0.0.1:9/x"}}

_CALLS: list[Any] = ["x", [5], [{}], []]


def _said(content: Any, role: str = "user") -> list[Any]:
    return [{"role": role, "content": content}]


# id, route, field, wrong values
WRONG: list[tuple[str, str, str, list[Any]]] = [
    ("B19-empty", COMPLETIONS, "prompt", ["", [], [""], [[]], None]),
    ("B19-empty", RESPONSES, "input", ["", [], None]),
    ("B33-token-ids", COMPLETIONS, "prompt", _NO_TOKENS),
    ("B33-kinds", COMPLETIONS, "prompt", [{}, 5, True, ["a", 5], ["a", None], [{}]]),
    ("B33-many", COMPLETIONS, "prompt", [["a"] * 513, [[1]] * 513]),
    ("B61-conversation", CHAT, "messages", [*_NO_CONVERSATION, "hi"]),
    ("B61-conversation", MESSAGES, "messages", [*_NO_CONVERSATION, "hi"]),
    ("B61-conversation", RESPONSES, "input", _NO_CONVERSATION),
    *[("B62-user", route, ASK[route].prompt_param, [_said(no) for no in _NO_TEXT]) for route in CHATS],
    *[("B62-system", route, ASK[route].prompt_param, [_said(no, "system") for no in _NO_TEXT]) for route in CHATS],
    *[("B62-missing", route, ASK[route].prompt_param, [[{"role": "user"}]]) for route in CHATS],
    *[("B63-part", route, ASK[route].prompt_param, [_said([{"type": kind} | _PICTURE]) for kind in _PARTS])
      for route in CHATS],
    ("B63-item", RESPONSES, "input", [[{"type": kind, "id": "x"}] for kind in _ITEMS]),
    ("B65-tool-without-id", CHAT, "messages", [[{"role": "tool", "content": "x"}]]),
    ("B65-calls", CHAT, "messages", [[{"role": "assistant", "tool_calls": calls}] for calls in _CALLS]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("route", "name", "values"),
    [pytest.param(route, name, values, id=f"{case}-{name_of(route)}") for case, route, name, values in WRONG],
)
def test_a_wrong_prompt_names_its_place(server: ScriptedServer, route: str, name: str, values: list[Any]) -> None:
    """Before, elsewhere: template exceptions as 500, parts dropped or printed as a Python list, ids from the end."""
    steps = server.runner.num_steps
    for value in values:
        error = refused_alike(server.client, route, {name: value})
        assert route == MESSAGES or error["param"].startswith(name), value
    assert server.runner.num_steps == steps


_CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
_RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "42"}


def _called(content: Mapping[str, Any]) -> dict[str, Any]:
    return conversation(
        CHAT, ("user", "x"), {"role": "assistant", "tool_calls": [_CALL], **content}, _RESULT, ("user", "y")
    )


def _arguments(arguments: str) -> dict[str, Any]:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}
    return conversation(RESPONSES, ("user", "x"), call, ("user", "y"))


_CALLING: list[dict[str, Any]] = [{"content": None}, {}, {"content": ""}, {"content": "text"}]
GOOD: list[tuple[str, str, dict[str, Any]]] = [
    *[("B61-system-only", route, conversation(route, ("system", "only"))) for route in CHATS],
    *[("B62-empty-text", route, conversation(route, ("user", ""), ("user", "x"))) for route in CHATS],
    *[(f"B65-{turn}", CHAT, _called(turn)) for turn in _CALLING],
    ("B65-unknown-call", CHAT, conversation(CHAT, ("user", "x"), {**_RESULT, "tool_call_id": "?", "content": ""})),
    ("B65-no-result", CHAT, conversation(CHAT, ("user", "x"), {"role": "assistant", "tool_calls": [_CALL]})),
    *[(f"B66-arguments-{name}", RESPONSES, _arguments(arguments)) for name, arguments in (
        ("infinite", '{"a": 1e999}'), ("nan", '{"a": NaN}'), ("deep", '{"a":' * 900 + "1" + "}" * 900), ("broken", "{"),
        ("long", "9" * 5000), ("list", "[1]"), ("empty", ""))],
    ("B33-two-prompts", COMPLETIONS, {"prompt": [[1], [2]]}),
    ("B33-zero", COMPLETIONS, {"prompt": [0, NUM_TOKENS - 1]}),
    ("B59-nul", COMPLETIONS, {"prompt": "a\x00b"}),
    *[("B59-nul", route, conversation(route, ("user", "a\x00b"))) for route in CHATS],
]  # fmt: skip


@pytest.mark.parametrize(
    ("route", "fields"), [pytest.param(route, fields, id=f"{case}-{name_of(route)}") for case, route, fields in GOOD]
)
def test_what_only_looks_wrong_is_answered(server: ScriptedServer, route: str, fields: dict[str, Any]) -> None:
    """B65: replayed turns were refused, sometimes with an empty 400.

    B66, infinite: the answer was computed, and then could not be stored: 500.
    """
    response = ask(server.client, route, fields)
    assert response.status_code == 200, response.text


_AB = [text("A"), text("B")]
_RESULT_OF_PARTS = {"type": "tool_result", "tool_use_id": "t", "content": _AB}
JOINED: list[tuple[str, str, dict[str, Any]]] = [
    *[("user", route, conversation(route, ("user", _AB), ("user", "x"))) for route in CHATS],
    *[("system", route, conversation(route, ("system", _AB), ("user", "x"))) for route in CHATS],
    *[("assistant", route, conversation(route, ("assistant", _AB), ("user", "x"))) for route in CHATS],
    ("tool", CHAT, conversation(CHAT, {**_RESULT, "content": _AB}, ("user", "x"))),
    ("system-blocks", MESSAGES, {"system": _AB, **conversation(MESSAGES, ("user", "x"))}),
    ("tool-result-blocks", MESSAGES, conversation(MESSAGES, ("user", [_RESULT_OF_PARTS, text("x")]))),
]


@pytest.mark.parametrize(
    ("route", "fields"),
    [pytest.param(route, fields, id=f"B63-{case}-{name_of(route)}") for case, route, fields in JOINED],
)
def test_parts_count_as_their_joined_text(server: ScriptedServer, route: str, fields: dict[str, Any]) -> None:
    """B63: content as a list of parts was dropped, or printed as a Python list."""
    assert ask(server.client, route, fields).headers[endpoints.HEADER_PROMPT_TOKENS] == str(len("ABx"))


STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}"
    "{{ m.content }}{% endfor %}"
)
LATE: Mapping[str, tuple[tuple[str, str], ...]] = {
    "late": (("system", "S1"), ("user", "a"), ("assistant", "b"), ("system", "S2"), ("user", "c")),
    "last": (("user", "a"), ("system", "S1")),
    "two": (("system", "S1"), ("system", "S2"), ("user", "c")),
    "developer": (("developer", "S1"), ("user", "a"), ("developer", "S2"), ("user", "c")),
}


def test_a_late_instruction_reaches_a_strict_template_on_every_route() -> None:
    """B64: a system message after the first turn was refused on one route and accepted on the others."""
    seen: list[bytes] = []
    with scripted_server(lambda _: _recording(seen), template=STRICT) as server:
        for route in CHATS:
            for case, turns in LATE.items():
                known = [
                    ("system", said) if role == "developer" and route == MESSAGES else (role, said)
                    for role, said in turns
                ]
                response = ask(server.client, route, conversation(route, *known))
                assert response.status_code == 200, (route, case)
                instructions = [said.encode() for role, said in known if role in {"system", "developer"}]
                assert all(said in seen[-1] for said in instructions), (route, case)


def _without_developer(turns: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Messages has no such role."""
    return tuple(("system" if role == "developer" else role, said) for role, said in turns)


def _recording(seen: list[bytes]) -> Script:
    def write(prompt: tuple[int, ...], _position: int) -> int:
        seen.append(bytes(prompt))
        return 97

    return write
