"""The memory plan: sums in whole bytes, before any weight is read, refused with the sum written out."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.engine.capacity import (
    CapacityError,
    CapacityPlan,
    MemoryFacts,
    plan_capacity,
    step_transient_bytes,
)
from plimsoll_runtime.engine.kv_cache import kv_bytes_per_token

# 1,000 bytes of weights, 200 of a step, 10 for each token: 1,800 bytes leave room for 60 tokens, 15 pages of 4.
FACTS = MemoryFacts(available_bytes=1800, weight_bytes=1000, transient_bytes=200, kv_bytes_per_token=10)
HOST_APART = replace(FACTS, host_bytes=1000)
SETTINGS: dict[str, Any] = {
    "model_window": 100,
    "running_slots": 4,
    "page_size": 4,
    "context_length": None,
    "kv_cache_tokens": None,
}


def plan(facts: MemoryFacts = FACTS, **values: Any) -> CapacityPlan:
    return plan_capacity(facts, **{**SETTINGS, **values})


FITS: list[tuple[str, dict[str, Any], tuple[int, int, int]]] = [
    ("nothing set: all that memory holds", {}, (60, 60, 15)),
    ("nothing set: the window", {"model_window": 8}, (8, 32, 8)),
    ("context for each slot", {"context_length": 12}, (12, 48, 12)),
    ("context for each slot, as far as memory allows", {"context_length": 24}, (24, 60, 15)),
    ("context rounded up to pages", {"context_length": 5, "running_slots": 1}, (5, 8, 2)),
    ("B39 the exact fit", {"context_length": 60}, (60, 60, 15)),
    ("the cache as it was set", {"context_length": 12, "kv_cache_tokens": 20}, (12, 20, 5)),
    ("the cache as it was set, on whole pages", {"context_length": 12, "kv_cache_tokens": 18}, (12, 18, 5)),
    ("no context: what the cache holds", {"kv_cache_tokens": 18}, (18, 18, 5)),
    ("context = window", {"context_length": 8, "model_window": 8, "running_slots": 1}, (8, 8, 2)),
    ("context = cache", {"context_length": 20, "kv_cache_tokens": 20}, (20, 20, 5)),
]


@pytest.mark.parametrize(("values", "expected"), [case[1:] for case in FITS], ids=[case[0] for case in FITS])
def test_fits(values: dict[str, Any], expected: tuple[int, int, int]) -> None:
    made = plan(**values)
    assert (made.context_length, made.kv_capacity_tokens, made.num_pages) == expected
    assert made.kv_bytes == made.num_pages * 40
    assert made.total_bytes <= FACTS.available_bytes


STATES: list[tuple[str, dict[str, Any], tuple[int, int, int]]] = [
    # Four slots: 600 bytes less 4 states leave 560, of which a quarter is 14 more, but 12 is the most.
    ("three spare ones for each slot", {"state_bytes": 10}, (16, 44, 0)),
    ("a quarter of what is left", {"state_bytes": 50}, (6, 28, 0)),
    ("none beside a configured context", {"state_bytes": 50, "context_length": 40}, (4, 40, 0)),
    ("none beside a configured cache", {"state_bytes": 50, "context_length": 8, "kv_cache_tokens": 40}, (4, 40, 0)),
    ("none beside paused sequences", {"state_bytes": 50, "paused_kv_bytes": 360}, (4, 4, 9)),
    ("no slot without one", {"state_bytes": 140}, (4, 4, 0)),
]


@pytest.mark.parametrize(("values", "expected"), [case[1:] for case in STATES], ids=[case[0] for case in STATES])
def test_states_are_counted_before_keys_and_values(values: dict[str, Any], expected: tuple[int, int, int]) -> None:
    facts = replace(FACTS, state_bytes=values.pop("state_bytes"))
    made = plan(facts, **values)
    assert (made.facts.num_states, made.kv_capacity_tokens, made.host_pages) == expected
    assert made.total_bytes <= FACTS.available_bytes


def test_a_state_takes_whole_pages_of_the_host() -> None:
    made = plan(replace(FACTS, state_bytes=41), running_slots=1, context_length=8, kv_cache_tokens=8)
    assert made.state_pages == 2
    assert made.facts.states_bytes == made.facts.num_states * 41 == 3 * 41
    ample = plan(replace(FACTS, state_bytes=41, host_bytes=9999), running_slots=1, context_length=8, kv_cache_tokens=8)
    # Twice what the device has: 2 pages of tokens, and 3 states of 2 pages each.
    assert (made.host_pages, ample.host_pages) == ((600 - 80 - 3 * 41) // 2 // 40, 2 * (2 + 3 * 2))


PAUSED: list[tuple[str, dict[str, Any], tuple[int, int]]] = [
    # 600 bytes are left for keys and values, 40 for a page: 15 pages.
    ("all of it is the pool's", {}, (15, 0)),
    ("half of what the pool leaves", {"context_length": 12, "running_slots": 2}, (6, 4)),
    ("no more than twice the pool", {"kv_cache_tokens": 8}, (2, 4)),
    ("as configured, before the pool", {"paused_kv_bytes": 400}, (5, 10)),
    ("as configured, in whole pages", {"paused_kv_bytes": 79, "kv_cache_tokens": 8}, (2, 1)),
    ("none", {"paused_kv_bytes": 0, "kv_cache_tokens": 8}, (2, 0)),
    ("a host of its own", {"facts": HOST_APART}, (15, 12)),
    ("a host of its own, as configured", {"facts": HOST_APART, "paused_kv_bytes": 1000}, (15, 25)),
]


@pytest.mark.parametrize(("values", "expected"), [case[1:] for case in PAUSED], ids=[case[0] for case in PAUSED])
def test_host_memory_of_paused_sequences(values: dict[str, Any], expected: tuple[int, int]) -> None:
    made = plan(**values)
    assert (made.num_pages, made.host_pages) == expected
    assert made.total_bytes <= made.facts.available_bytes


REFUSED: list[tuple[str, dict[str, Any], list[str]]] = [
    ("beyond the window", {"context_length": 101}, ["101", "window of 100", "--context-length", "spec.contextLength"]),
    (
        "beyond the memory",
        {"context_length": 61},
        ["61", "610 bytes", "1,800", "1,000", "200", "600", "(60 tokens)", "--context-length", "spec.resources"],
    ),
    (
        "B39 a cache beyond the memory",
        {"kv_cache_tokens": 61},
        ["61", "640 bytes", "1,800", "1,000", "200", "600", "--kv-cache-tokens", "spec.kvCache.maxTokens"],
    ),
    ("a context beyond the cache", {"context_length": 30, "kv_cache_tokens": 20}, ["30", "20", "--kv-cache-tokens"]),
    ("a cache without room for a prompt and an answer", {"kv_cache_tokens": 1}, ["2 exceeds", "--kv-cache-tokens"]),
    ("B39 paused sequences beyond the memory", {"paused_kv_bytes": 561}, ["561", "600", "--paused-kv", "spec.offload"]),
    ("B39 a host of its own", {"facts": HOST_APART, "paused_kv_bytes": 1001}, ["1,001", "the host has 1,000"]),
    (
        "B39 a cache beside paused sequences",
        {"paused_kv_bytes": 400, "kv_cache_tokens": 24},
        ["24", "paused_kv takes 400", "leaves 200", "--kv-cache-tokens"],
    ),
    ("weights alone", {"facts": MemoryFacts(1100, 1000, 200, 10)}, ["1,000", "200", "1,200", "1,100", "--model"]),
    (
        "states alone",
        {"facts": replace(FACTS, state_bytes=200)},
        ["1,000", "200 bytes", "4 states 800 bytes", "2,000", "1,800", "--model"],
    ),
    (
        "a context beside states",
        {"facts": replace(FACTS, state_bytes=50), "context_length": 50},
        ["50 needs 500 bytes", "4 states take 200", "leaves 400", "(40 tokens)"],
    ),
    ("not one page", {"facts": MemoryFacts(1239, 1000, 200, 10)}, ["1,200", "1,239", "10 bytes for each token"]),
]


@pytest.mark.parametrize(("values", "parts"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_refused_with_the_sum(values: dict[str, Any], parts: list[str]) -> None:
    """B39, B18: the plan left out what was set, and the server ended with a bare assertion or served less."""
    with pytest.raises(CapacityError) as refusal:
        plan(**values)
    message = str(refusal.value)
    assert [part for part in parts if part not in message] == []
    assert "\n" not in message
    assert "-1" not in message


@given(
    facts=st.builds(
        MemoryFacts,
        available_bytes=st.integers(0, 10_000),
        weight_bytes=st.integers(0, 3000),
        transient_bytes=st.integers(0, 200),
        kv_bytes_per_token=st.integers(1, 50),
        state_bytes=st.sampled_from([0, 1, 30, 700]),
    ),
    values=st.fixed_dictionaries(
        {
            "model_window": st.integers(2, 200),
            "running_slots": st.integers(1, 9),
            "page_size": st.integers(1, 20),
            "context_length": st.none() | st.integers(2, 200),
            "kv_cache_tokens": st.none() | st.integers(1, 400),
            "paused_kv_bytes": st.none() | st.integers(0, 4000),
        }
    ),
)
def test_a_plan_never_exceeds_the_memory_and_holds_a_context(facts: MemoryFacts, values: dict[str, Any]) -> None:
    try:
        made = plan_capacity(facts, **values)
    except CapacityError:
        return
    assert made.total_bytes <= facts.available_bytes
    assert made.kv_bytes == made.num_pages * values["page_size"] * facts.kv_bytes_per_token
    assert (made.facts.num_states >= values["running_slots"]) == (facts.state_bytes > 0)
    assert 2 <= made.context_length <= min(values["model_window"], made.kv_capacity_tokens)
    assert made.kv_capacity_tokens <= made.num_pages * values["page_size"]
    assert values["context_length"] in (None, made.context_length)
    assert values["kv_cache_tokens"] in (None, made.kv_capacity_tokens)


def test_bytes_of_one_token_and_of_one_step() -> None:
    """SmolLM2-135M in float32."""
    assert kv_bytes_per_token(num_layers=30, num_kv_heads=3, head_elements=64, element_bytes=4) == 46_080
    transient = step_transient_bytes(
        step_tokens=512,
        logit_rows=64,
        hidden_size=576,
        feed_forward_size=1536,
        query_size=576,
        vocab_size=49_152,
        context_tokens=2048,
    )
    assert transient == 512 * (4 * (8 * 576 + 3 * 1536) + 2048 * 5) + 64 * 49_152 * 12
