"""From a request to an admitted one: which default applies, what refuses, and that nothing else is asked."""

from dataclasses import replace
from typing import Any

import pytest

from plimsoll_runtime.admission.admit import Admission, ServedModel
from plimsoll_runtime.admission.checks import CheckedFields
from plimsoll_runtime.admission.deadlines import Patience
from plimsoll_runtime.admitted import AdmittedRequest
from plimsoll_runtime.contract.config import Limits
from plimsoll_runtime.contract.endpoints import COMPLETIONS
from plimsoll_runtime.refusal import Refusal
from plimsoll_runtime.request import GenerationRequest, Prompt, TextPrompt, WireValue
from plimsoll_runtime.text.model_text import AtLeast

MODEL = ServedModel("m", 100, frozenset({99}), {"temperature": 0.6, "top_k": 50})
LIMITS = Limits(context_length=16, max_output_default=8, max_output_limit=None, over_budget="clamp")


class Encoder:
    """A byte is a token; the text `bad` has none; far beyond the bound it does not count to the end."""

    def encode_prompt(
        self, prompt: Prompt, prompt_param: str, most_tokens: int | None = None
    ) -> list[int] | AtLeast | Refusal:
        assert isinstance(prompt, TextPrompt)
        if prompt.text == "bad":
            return Refusal(code="template_error", message="the template failed", param=prompt_param)
        if most_tokens is not None and len(prompt.text) > 10 * most_tokens:
            return AtLeast(most_tokens + 1)
        return list(prompt.text.encode())


def admission(limits: Limits = LIMITS, **named: Any) -> Admission:
    settings: dict[str, Any] = {"sampling_defaults": "model", "new_seed": lambda: 42, "model": MODEL, **named}
    return Admission(limits=limits, encoder=Encoder(), patience=Patience(3, 5), **settings)


def admit(*texts: str, by: Admission | None = None, echo: bool = False, **values: Any) -> AdmittedRequest | Refusal:
    by = admission() if by is None else by
    wire = {name: WireValue(name, value) for name, value in values.items()}
    prompts = tuple(map(TextPrompt, texts))
    request = GenerationRequest(COMPLETIONS, "m", "prompt", prompts, wire, echo=echo)
    checked = by.check(request)
    assert isinstance(checked, CheckedFields), checked
    times = by.times(request, checked, 100.0)
    return by.admit(request, checked, request_id="r", tenant="t", times=times)


def admitted(*texts: str, **values: Any) -> AdmittedRequest:
    request = admit(*texts, **values)
    assert isinstance(request, AdmittedRequest), request
    return request


def test_what_was_not_given_comes_from_the_model() -> None:
    sampling = admitted("hi").sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed) == (0.6, 50, 1.0, 42)


def test_neutral_defaults_ignore_the_model() -> None:
    sampling = admitted("hi", by=admission(sampling_defaults="neutral")).sampling
    assert (sampling.temperature, sampling.top_k) == (1.0, 0)


def test_what_was_given_wins_zero_included() -> None:
    """`x or default` would have made 0 the default again."""
    sampling = admitted("hi", temperature=0, top_k=0, seed=0, top_p=0).sampling
    assert (sampling.temperature, sampling.top_k, sampling.seed, sampling.top_p) == (0, 0, 0, 0)
    assert admitted("hi", top_k=-1).sampling.top_k == 0


def test_deadlines_count_from_the_arrival() -> None:
    request = admitted("hi")
    assert (request.queue_deadline, request.deadline) == (103.0, 105.0)


@pytest.mark.parametrize(
    ("values", "stops", "banned"),
    [
        ({}, frozenset({99}), frozenset()),
        ({"ignore_eos": True}, frozenset(), frozenset()),
        ({"stop_token_ids": [5]}, frozenset({5, 99}), frozenset()),
        ({"min_tokens": 2}, frozenset({99}), frozenset({99})),
        ({"ignore_eos": True, "stop_token_ids": [5], "min_tokens": 1}, frozenset({5}), frozenset({5})),
    ],
)
def test_which_tokens_end_an_answer(values: dict[str, Any], stops: frozenset[int], banned: frozenset[int]) -> None:
    request = admitted("hi", **values)
    assert (request.stop_token_ids, request.banned_until_min_tokens) == (stops, banned)


def test_prompt_logprobs_are_for_echo() -> None:
    assert admitted("hi", logprobs=2).prompt_logprobs is None
    assert admitted("hi", logprobs=2, echo=True).prompt_logprobs == 2


def test_each_prompt_has_its_own_budget_and_the_tightest_is_shown() -> None:
    request = admitted("abc", "a" * 12, "a")
    assert [prompt.budget.max_output_tokens for prompt in request.prompts] == [8, 4, 8]
    assert request.tightest_budget.limited_by == "context"


@pytest.mark.parametrize(
    ("texts", "param"),
    [(("hi", "a" * 16), "prompt"), (("bad", "hi"), "prompt"), (("hi", "a" * 99), "prompt")],
)
def test_one_refused_prompt_refuses_all(texts: tuple[str, ...], param: str) -> None:
    refusal = admit(*texts)
    assert isinstance(refusal, Refusal)
    assert refusal.param == param


def test_an_endless_prompt_is_refused_without_its_whole_count() -> None:
    """B23: megabytes were tokenized to say exactly how far too many they are."""
    refusal = admit("a" * 1000)
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.numbers["prompt_tokens"]) == ("context_length_exceeded", 17)
    assert "at the least" in refusal.message


def test_a_limit_is_blamed_under_the_name_it_was_sent() -> None:
    refusing = admission(replace(LIMITS, over_budget="refuse"))
    refusal = admit("hi", by=refusing, requested_output_tokens=15)
    assert isinstance(refusal, Refusal)
    assert (refusal.param, refusal.code) == ("requested_output_tokens", "context_length_exceeded")
    assert isinstance(admit("hi", by=refusing, requested_output_tokens=14), AdmittedRequest)


def test_bad_fields_come_before_an_unknown_model() -> None:
    """Order of checks: 400, then 404."""
    request = GenerationRequest(COMPLETIONS, "other", "prompt", (TextPrompt("hi"),), {"n": WireValue("n", 0)})
    refusal = admission().check(request)
    assert isinstance(refusal, Refusal)
    assert refusal.param == "n"
    unknown = admission().check(replace(request, wire={}))
    assert isinstance(unknown, Refusal)
    assert unknown.code == "model_not_found"


@pytest.mark.parametrize(
    ("tenant", "weight"), [("1a2b3c4d" + "0" * 56, 3), ("1a2b3c4e" + "0" * 56, 1), ("everyone", 1), ("ffff0000aa", 7)]
)
def test_a_tenant_weighs_what_is_said_of_the_beginning_of_its_hash(tenant: str, weight: int) -> None:
    by = admission(tenant_weights={"1a2b3c4d": 3, "ffff0000": 7})
    request = GenerationRequest(COMPLETIONS, "m", "prompt", (TextPrompt("x"),))
    checked = by.check(request)
    assert isinstance(checked, CheckedFields)
    times = by.times(request, checked, 0.0)
    made = by.admit(request, checked, request_id="r", tenant=tenant, times=times)
    assert isinstance(made, AdmittedRequest)
    assert made.tenant_weight == weight


@pytest.mark.parametrize(
    ("server", "asked", "stops"), [(False, None, False), (False, True, True), (True, None, True), (True, False, True)]
)
def test_a_repetition_is_stopped_where_the_server_or_the_request_says_so(
    server: bool, asked: bool | None, stops: bool
) -> None:
    values = {} if asked is None else {"repetition_stop": asked}
    assert admitted("x", by=admission(stops_runaways=server), **values).stop_on_runaway is stops
