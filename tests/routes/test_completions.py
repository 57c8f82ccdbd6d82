"""What a completions body becomes, and what is said when it is wrong."""

from typing import Any

import pytest

from plimsoll_runtime.refusal import Refusal
from plimsoll_runtime.request import GenerationRequest, TextPrompt, TokenPrompt, WireValue
from plimsoll_runtime.routes.completions import COMPLETIONS


def convert(**fields: Any) -> GenerationRequest | Refusal:
    return COMPLETIONS.to_request({"model": "m", "prompt": "hi", **fields}, {"x-plimsoll-over-budget": "refuse"})


def accepted(**fields: Any) -> GenerationRequest:
    request = convert(**fields)
    assert isinstance(request, GenerationRequest), request
    return request


def refused(**fields: Any) -> Refusal:
    refusal = convert(**fields)
    assert isinstance(refusal, Refusal), refusal
    return refusal


PROMPTS: list[Any] = [
    pytest.param("hi", (TextPrompt("hi"),), id="text"),
    pytest.param(["a", "b"], (TextPrompt("a"), TextPrompt("b")), id="texts"),
    pytest.param([1, 2], (TokenPrompt((1, 2)),), id="tokens"),
    pytest.param([[1], [2, 3]], (TokenPrompt((1,)), TokenPrompt((2, 3))), id="B33-two-token-prompts"),
    pytest.param("", (TextPrompt(""),), id="B19-empty-text"),
    pytest.param([""], (TextPrompt(""),), id="B19-list-of-empty-text"),
    pytest.param([-1], (TokenPrompt((-1,)),), id="B33-ids-are-judged-by-admission"),
]


@pytest.mark.parametrize(("sent", "prompts"), PROMPTS)
def test_a_prompt_is_a_text_or_token_ids_or_a_list_of_either(sent: Any, prompts: Any) -> None:
    request = accepted(prompt=sent)
    assert request.prompts == prompts
    assert (request.route, request.prompt_param, request.over_budget) == ("/v1/completions", "prompt", "refuse")


WRONG_PROMPTS: list[Any] = [
    pytest.param(None, "missing_required_parameter", id="null"),
    pytest.param([], "invalid_value", id="B19-empty-list"),
    pytest.param([[]], "invalid_value", id="B19-empty-token-list"),
    pytest.param([[1], []], "invalid_value", id="B19-one-empty-token-list"),
    pytest.param([1, "a"], "invalid_type", id="B33-mixed"),
    pytest.param(["a", [1]], "invalid_type", id="mixed-text-and-tokens"),
    pytest.param([1.5], "invalid_type", id="B33-fraction"),
    pytest.param([True], "invalid_type", id="boolean"),
    pytest.param([["a"]], "invalid_type", id="nested-text"),
    pytest.param([None], "invalid_type", id="null-in-list"),
    pytest.param(7, "invalid_type", id="number"),
    pytest.param({}, "invalid_type", id="object"),
]


@pytest.mark.parametrize(("sent", "code"), WRONG_PROMPTS)
def test_any_other_prompt_is_refused(sent: Any, code: str) -> None:
    """An empty prompt became an index error deep in the engine; ids of the wrong type gave a 500."""
    refusal = refused(prompt=sent)
    assert (refusal.param, refusal.code) == ("prompt", code)
    assert "prompt" in refusal.message


def test_a_long_token_prompt_is_one_prompt() -> None:
    assert accepted(prompt=[5] * 5000).prompts == (TokenPrompt((5,) * 5000),)


def test_numbers_pass_through_as_they_came() -> None:
    """B35: `logprobs` is a count on this route, and whether `true` is one is judged in one place."""
    request = accepted(max_tokens=8.0, logprobs=True, best_of=2, n="3", ignore_eos=True, min_tokens=None)
    assert request.wire == {
        "requested_output_tokens": WireValue("max_tokens", 8.0),
        "logprobs": WireValue("logprobs", True),
        "best_of": WireValue("best_of", 2),
        "n": WireValue("n", "3"),
        "ignore_eos": WireValue("ignore_eos", True),
    }


def test_nulls_are_as_if_absent() -> None:
    request = accepted(logprobs=None, seed=None, max_tokens=None, suffix=None, echo=None, stream=None)
    assert request.wire == {}
    assert (request.stream, request.echo) == (False, False)


WRONG_FIELDS: list[Any] = [
    pytest.param({"suffix": " end"}, "suffix", id="B80-suffix"),
    pytest.param({"tools": [{"type": "function"}]}, "tools", id="B80-tools"),
    pytest.param({"store": True}, "store", id="B80-store"),
    pytest.param({"service_tier": "flex"}, "service_tier", id="B80-service-tier"),
    pytest.param({"echo": 1}, "echo", id="echo-number"),
    pytest.param({"model": ""}, "model", id="model-empty"),
    pytest.param({"stream": "yes"}, "stream", id="stream-string"),
    pytest.param({"stream_options": {"include_usage": True}}, "stream_options", id="B43-options-without-stream"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG_FIELDS)
def test_a_wrong_or_unsupported_field_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


def test_values_that_change_nothing_are_accepted() -> None:
    request = accepted(suffix="", tools=[], response_format={"type": "text"}, user="u", metadata={}, n=1, echo=True)
    assert request.unknown_fields == ()
    assert request.echo


def test_unknown_fields_are_reported_and_never_refused() -> None:
    request = accepted(max_token=8, stream=True, stream_options={"include_usage": True, "new": 1})
    assert request.unknown_fields == ("max_token", "stream_options.new")
    assert request.include_usage


@pytest.mark.parametrize("missing", ["model", "prompt"])
def test_a_missing_field_is_named(missing: str) -> None:
    refusal = COMPLETIONS.to_request({name: "x" for name in ("model", "prompt") if name != missing}, {})
    assert isinstance(refusal, Refusal)
    assert (refusal.param, refusal.code) == (missing, "missing_required_parameter")
