"""Field checks by themselves: order, bounds of exactly one more, and what a message shows of a client's value."""

import json
from typing import Any

import pytest

from plimsoll_runtime.admission.checks import (
    MAX_CHOICES,
    MAX_LOGIT_BIASES,
    MAX_SEQUENCES,
    MAX_STOP_CHARACTERS,
    MAX_STOP_TOKEN_IDS,
    CheckedFields,
    check_fields,
)
from plimsoll_runtime.contract.config import MAX_TOKEN_COUNT
from plimsoll_runtime.contract.endpoints import CHAT_COMPLETIONS, COMPLETIONS, MESSAGES, RESPONSES, Route
from plimsoll_runtime.refusal import Refusal
from plimsoll_runtime.request import GenerationRequest, TokenPrompt, WireValue

NUM_TOKENS = 100


def request(
    route: Route = COMPLETIONS, *, num_prompts: int = 1, over_budget: str | None = None, **values: Any
) -> GenerationRequest:
    """A request whose values are sent under the names that admission itself uses."""
    wire = {name: WireValue(name, value) for name, value in values.items()}
    return GenerationRequest(route, "m", "prompt", (TokenPrompt((1,)),) * num_prompts, wire, over_budget)


def checked(*arguments: Any, **values: Any) -> CheckedFields:
    fields = check_fields(request(*arguments, **values), NUM_TOKENS)
    assert isinstance(fields, CheckedFields), fields
    return fields


def refused(*arguments: Any, **values: Any) -> Refusal:
    refusal = check_fields(request(*arguments, **values), NUM_TOKENS)
    assert isinstance(refusal, Refusal), refusal
    return refusal


def test_nothing_given_is_nothing_wanted() -> None:
    """A default is nobody's business here: None is what admission fills."""
    assert checked() == CheckedFields(
        requested_output_tokens=None,
        numbers={},
        top_k=None,
        seed=None,
        logit_bias={},
        stops=(),
        stop_token_ids=frozenset(),
        min_tokens=0,
        ignore_eos=False,
        num_choices=1,
        logprobs=None,
    )


# name, the last good value, the first bad one
BOUNDS: list[tuple[str, Any, Any]] = [
    ("requested_output_tokens", 1, 0),
    ("requested_output_tokens", MAX_TOKEN_COUNT, MAX_TOKEN_COUNT + 1),
    ("temperature", 0, -1e-9),
    ("temperature", 2, 2.0000001),
    ("top_p", 0, -1e-9),
    ("top_p", 1, 1.0000001),
    ("min_p", 1, 1.0000001),
    ("presence_penalty", -2, -2.0000001),
    ("frequency_penalty", 2, 2.0000001),
    ("repetition_penalty", 0.01, 0.009),
    ("repetition_penalty", 10, 10.1),
    ("top_k", -1, -2),
    ("top_k", 2**31 - 1, 2**31),
    ("seed", -(2**63), -(2**63) - 1),
    ("seed", 2**63 - 1, 2**63),
    ("n", 1, 0),
    ("n", MAX_CHOICES, MAX_CHOICES + 1),
    ("logprobs", 0, -1),
    ("logprobs", 5, 6),
    ("min_tokens", 0, -1),
    ("min_tokens", MAX_TOKEN_COUNT, MAX_TOKEN_COUNT + 1),
    ("logit_bias", {str(NUM_TOKENS - 1): 1}, {str(NUM_TOKENS): 1}),
    ("logit_bias", {"0": 100}, {"0": 100.1}),
    ("logit_bias", {}, {str(number): 0 for number in range(MAX_LOGIT_BIASES + 1)}),
    ("stop_token_ids", [0, NUM_TOKENS - 1], [NUM_TOKENS]),
    ("stop_token_ids", [0] * MAX_STOP_TOKEN_IDS, [0] * (MAX_STOP_TOKEN_IDS + 1)),
    ("stop", ["a"] * 4, ["a"] * 5),
    ("stop", "a" * MAX_STOP_CHARACTERS, "a" * (MAX_STOP_CHARACTERS + 1)),
    ("stop", ["a" * (MAX_STOP_CHARACTERS // 2)] * 2, ["a" * (MAX_STOP_CHARACTERS // 2)] * 3),
    ("stop", "a", ""),
]


@pytest.mark.parametrize(("name", "good", "bad"), BOUNDS, ids=lambda value: str(value)[:20])
def test_a_bound_is_where_it_is_documented(name: str, good: Any, bad: Any) -> None:
    checked(**{name: good})
    refusal = refused(**{name: bad})
    assert refusal.param == name
    assert name in refusal.message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "name", ["temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty", "seed", "top_k", "n"]
)
def test_no_number_is_not_finite(name: str, value: float) -> None:
    """B28: NaN compares false, so it passed `value < 0 or value > 2`."""
    json.dumps(refused(**{name: value}).message, allow_nan=False)


@pytest.mark.parametrize("value", [10**4000, "x" * 10_000, ["x"] * 10_000, {"x": 1}, 1e300, None, "\x00\n"])
def test_a_message_shows_little_of_a_value(value: Any) -> None:
    message = refused(requested_output_tokens=value).message
    assert len(message) < 200
    assert message.isprintable()


def test_whole_numbers_may_be_written_as_fractions() -> None:
    """B06: 8.0 is 8 on every route, true is not 1."""
    fields = checked(requested_output_tokens=8.0, seed=7.0, n=2.0, top_k=1e3)
    assert (fields.requested_output_tokens, fields.seed, fields.num_choices, fields.top_k) == (8, 7, 2, 1000)
    wrong: list[Any] = [True, False, "8", 8.5, [], {}]
    assert all(refused(requested_output_tokens=value).code == "invalid_type" for value in wrong)


def test_sequences_are_bounded_as_a_product() -> None:
    """Many prompts and many choices are each fine."""
    checked(num_prompts=MAX_SEQUENCES)
    checked(num_prompts=4, n=MAX_CHOICES)
    assert refused(num_prompts=5, n=MAX_CHOICES).param == "n"
    assert refused(num_prompts=MAX_SEQUENCES + 1).param == "prompt"


def test_best_of_must_be_what_is_returned() -> None:
    """B15: it was accepted and ignored."""
    assert checked(best_of=2, n=2).num_choices == 2
    assert refused(best_of=2).code == "unsupported_parameter"


def test_min_tokens_must_fit_into_the_limit() -> None:
    """B53: more tokens were demanded than could ever come."""
    assert checked(min_tokens=3, requested_output_tokens=3).min_tokens == 3
    assert checked(min_tokens=3).min_tokens == 3
    assert refused(min_tokens=4, requested_output_tokens=3).param == "min_tokens"


def test_stops_keep_their_order_and_lose_their_doubles() -> None:
    """B55."""
    assert checked(stop=["b", "a", "b"]).stops == ("b", "a")
    assert checked(stop="b").stops == ("b",)
    assert checked(stop=[]).stops == ()


def test_messages_may_have_more_stops() -> None:
    wire = {"stop": WireValue("stop_sequences", ["a"] * 64)}
    assert isinstance(check_fields(GenerationRequest(MESSAGES, "m", "messages", (), wire), NUM_TOKENS), CheckedFields)
    wire = {"stop": WireValue("stop_sequences", ["a"] * 65)}
    assert isinstance(check_fields(GenerationRequest(MESSAGES, "m", "messages", (), wire), NUM_TOKENS), Refusal)


@pytest.mark.parametrize(
    ("route", "values", "expected"),
    [
        (COMPLETIONS, {"logprobs": 3}, 3),
        (CHAT_COMPLETIONS, {"logprobs": True}, 0),
        (CHAT_COMPLETIONS, {"logprobs": True, "top_logprobs": 20}, 20),
        (CHAT_COMPLETIONS, {"logprobs": False}, None),
        (CHAT_COMPLETIONS, {"logprobs": False, "top_logprobs": 0}, None),
        (RESPONSES, {"logprobs": True, "top_logprobs": 2}, 2),
    ],
)
def test_logprobs_mean_what_their_api_says(route: Route, values: dict[str, Any], expected: int | None) -> None:
    """B35: the older API counts them, the newer ones switch them on."""
    assert checked(route, **values).logprobs == expected


@pytest.mark.parametrize(
    ("route", "values", "param"),
    [
        (COMPLETIONS, {"logprobs": True}, "logprobs"),
        (CHAT_COMPLETIONS, {"logprobs": 3}, "logprobs"),
        (CHAT_COMPLETIONS, {"top_logprobs": 3}, "top_logprobs"),
        (CHAT_COMPLETIONS, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ],
)
def test_logprobs_of_the_other_api_are_refused(route: Route, values: dict[str, Any], param: str) -> None:
    assert refused(route, **values).param == param


@pytest.mark.parametrize(
    ("word", "chosen"), [(None, None), ("clamp", "clamp"), ("Refuse", "refuse"), ("REFUSE", "refuse")]
)
def test_the_header_chooses_by_word(word: str | None, chosen: str | None) -> None:
    assert checked(over_budget=word).over_budget == chosen


@pytest.mark.parametrize("word", ["", "maybe", "clamp,refuse", " clamp", "1"])
def test_another_word_in_the_header_is_refused(word: str) -> None:
    assert refused(over_budget=word).param == "x-plimsoll-over-budget"
