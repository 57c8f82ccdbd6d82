"""Which turns are left out of a conversation that does not fit."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles.server import MODEL, scripted_server
from plimsoll_runtime.admission.truncation import without_oldest_turns
from plimsoll_runtime.contract import endpoints
from plimsoll_runtime.request import ChatPrompt

SYSTEM = {"role": "system", "content": "be brief"}
turns = st.lists(
    st.tuples(st.integers(1, 9), st.lists(st.sampled_from(["assistant", "tool"]), max_size=3)), min_size=1, max_size=9
)


def conversation(lengths: list[tuple[int, list[str]]], *, has_system: bool) -> list[list[dict[str, str]]]:
    """The messages of each turn, the instructions as a turn of their own in front."""
    made = [
        [{"role": "user", "content": "u" * n}, *({"role": role, "content": "x"} for role in roles)]
        for n, roles in lengths
    ]
    return [[SYSTEM] if has_system else [], *made]


def size(prompt: ChatPrompt) -> int:
    return sum(len(message["content"]) for message in prompt.messages)


@given(turns, st.booleans(), st.integers(0, 60))
def test_the_fewest_oldest_turns_are_left_out(
    lengths: list[tuple[int, list[str]]], has_system: bool, most: int
) -> None:
    instructions, *made = conversation(lengths, has_system=has_system)
    whole = ChatPrompt(tuple(sum(made, instructions)))
    shorter = without_oldest_turns(whole, lambda prompt: size(prompt) <= most)
    kept = [made[start:] for start in range(1, len(made))] or [made]
    candidates = [ChatPrompt(tuple(sum(some, instructions))) for some in kept]
    assert shorter == next((each for each in candidates if size(each) <= most), candidates[-1])


def ask(server: Any, texts: list[str], **fields: Any) -> Any:
    turns: list[dict[str, str]] = []
    for text in texts:
        turns += [{"role": "user", "content": text}, {"role": "assistant", "content": "ok"}]
    body = {"model": MODEL, "input": turns[:-1], "ignore_eos": True, **fields}
    return server.client.post(endpoints.RESPONSES, json=body)


@pytest.fixture(scope="module")
def server() -> Any:
    with scripted_server(context_length=64, max_output_default=16) as running:
        yield running


def test_what_fits_is_left_alone(server: Any) -> None:
    """Room for one token is a fit: nothing is dropped where the law refuses nothing."""
    whole = ask(server, ["a" * 50, "b" * 11], truncation="auto").json()
    assert (whole["usage"]["input_tokens"], whole["usage"]["output_tokens"]) == (63, 1)
    assert whole["truncation"] == "auto"


def test_what_does_not_fit_loses_its_oldest_turns(server: Any) -> None:
    texts = ["a" * 50, "b" * 20, "c" * 20]
    assert ask(server, texts).json()["error"]["code"] == "context_length_exceeded"
    assert ask(server, texts, truncation="disabled").status_code == 400
    cut = ask(server, texts, truncation="auto").json()
    assert (cut["usage"]["input_tokens"], cut["usage"]["output_tokens"]) == (20 + 2 + 20, 16)


def test_room_is_made_for_the_output_that_was_asked_for(server: Any) -> None:
    texts = ["a" * 50, "b" * 20, "c" * 20]
    cut = ask(server, texts, truncation="auto", max_output_tokens=40).json()
    assert (cut["usage"]["input_tokens"], cut["usage"]["output_tokens"]) == (20, 40)


def test_a_last_turn_that_does_not_fit_is_refused(server: Any) -> None:
    error = ask(server, ["a", "b" * 80], truncation="auto").json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
