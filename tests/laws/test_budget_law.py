"""The budget law for all numbers: what is granted, what is refused, and what is said about it."""

import re

from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.admission.budget import decide_budget
from plimsoll_runtime.admitted import Budget
from plimsoll_runtime.contract.config import DEFAULT_MAX_OUTPUT_TOKENS, MAX_TOKEN_COUNT, Limits
from plimsoll_runtime.refusal import Refusal

tokens = st.one_of(st.integers(1, 40), st.integers(1, MAX_TOKEN_COUNT))
prompts = st.one_of(st.integers(0, 40), st.integers(0, MAX_TOKEN_COUNT))
requests = st.one_of(st.none(), tokens)


@st.composite
def limits(draw: st.DrawFn, over_budget: str | None = None) -> Limits:
    """Any effective limits; the default may lie above the hard limit, as the documented constant does."""
    word = draw(st.sampled_from(["clamp", "refuse"])) if over_budget is None else over_budget
    return Limits(draw(tokens), draw(tokens), draw(st.one_of(st.none(), tokens)), word)  # type: ignore[arg-type]


@given(prompts, requests, limits())
def test_a_grant_fits_into_every_bound_and_is_as_large_as_they_allow(
    prompt: int, requested: int | None, limit: Limits
) -> None:
    decision = decide_budget(prompt, requested, limit)
    if isinstance(decision, Budget):
        room = limit.context_length - prompt
        wanted = limit.max_output_default if requested is None else requested
        hard = room if limit.max_output_limit is None else limit.max_output_limit
        assert 1 <= decision.max_output_tokens == min(wanted, hard, room)
        assert decision.prompt_tokens + decision.max_output_tokens <= limit.context_length


@given(prompts, requests, limits())
def test_limited_by_is_the_first_that_equals_the_grant(prompt: int, requested: int | None, limit: Limits) -> None:
    decision = decide_budget(prompt, requested, limit)
    if isinstance(decision, Budget):
        wanted = limit.max_output_default if requested is None else requested
        bounds = [
            ("request" if requested is not None else "default", wanted),
            ("limit", limit.max_output_limit),
            ("context", limit.context_length - prompt),
        ]
        assert decision.limited_by == next(name for name, bound in bounds if bound == decision.max_output_tokens)


@given(prompts, limits())
def test_an_omitted_limit_is_refused_only_for_the_prompt(prompt: int, limit: Limits) -> None:
    decision = decide_budget(prompt, None, limit)
    assert isinstance(decision, Refusal) == (prompt >= limit.context_length)


@given(prompts, requests, limits(over_budget="clamp"))
def test_clamp_refuses_only_a_prompt_without_room(prompt: int, requested: int | None, limit: Limits) -> None:
    assert isinstance(decide_budget(prompt, requested, limit), Refusal) == (prompt >= limit.context_length)


@given(prompts, tokens, limits(over_budget="refuse"))
def test_refuse_grants_exactly_what_was_asked_or_nothing(prompt: int, requested: int, limit: Limits) -> None:
    decision = decide_budget(prompt, requested, limit)
    fits = prompt + requested <= limit.context_length and (
        limit.max_output_limit is None or requested <= limit.max_output_limit
    )
    assert isinstance(decision, Budget) == fits
    if isinstance(decision, Budget):
        assert (decision.max_output_tokens, decision.limited_by) == (requested, "request")


@given(prompts, requests, limits(over_budget="refuse"))
def test_a_refusal_carries_every_number_and_none_is_negative(prompt: int, requested: int | None, limit: Limits) -> None:
    decision = decide_budget(prompt, requested, limit)
    if isinstance(decision, Refusal):
        assert decision.numbers == {
            "prompt_tokens": prompt,
            "requested_output_tokens": requested,
            "max_output_limit": limit.max_output_limit,
            "context_length": limit.context_length,
        }
        assert not re.search(r"-\d", decision.message), "a number below zero explains nothing"
        room = limit.context_length - prompt
        hard = limit.max_output_limit
        if requested is not None and room >= 1 and hard is not None and requested > max(hard, room):
            assert decision.code == ("context_length_exceeded" if room <= hard else "invalid_value")


def test_the_second_report() -> None:
    """111 + 8192 > 8192: every request of a client that asked for the context length was refused."""
    window = Limits(8192, DEFAULT_MAX_OUTPUT_TOKENS, None, "clamp")
    clamped = decide_budget(111, 8192, window)
    assert isinstance(clamped, Budget)
    assert (clamped.max_output_tokens, clamped.limited_by) == (8081, "context")
    refused = decide_budget(111, 8192, Limits(8192, DEFAULT_MAX_OUTPUT_TOKENS, None, "refuse"))
    assert isinstance(refused, Refusal)
    assert "prompt_tokens 111 + requested_output_tokens 8,192 exceed context_length 8,192" in refused.message
