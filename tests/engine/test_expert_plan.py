"""Keys and values first, then experts: sums in whole bytes; a size that was configured is the size, or is refused."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.contract.config import Offload
from plimsoll_runtime.engine.capacity import CapacityError, MemoryFacts
from plimsoll_runtime.engine.expert_plan import ExpertFacts, MemoryPlan, plan_memory

# 1,000 bytes of weights without experts, 200 of a step, 10 for each token (40 a page); 20 experts of 100 bytes.
EXPERTS = ExpertFacts(count=20, experts_per_token=3, slot_bytes=100, all_bytes=1900)
SETTINGS: dict[str, Any] = {
    "model_window": 100,
    "running_slots": 4,
    "page_size": 4,
    "context_length": None,
    "kv_cache_tokens": None,
    "paused_kv_bytes": 0,
}


def plan(
    available: int,
    mode: Offload = "experts",
    cache: int | None = None,
    experts: ExpertFacts | None = EXPERTS,
    **values: Any,
) -> MemoryPlan:
    facts = MemoryFacts(available_bytes=available, weight_bytes=1000, transient_bytes=200, kv_bytes_per_token=10)
    settings = {**SETTINGS, **values}
    return plan_memory(facts, experts, mode=mode, expert_cache_bytes=cache, kept_outputs_bytes=50, **settings)


def test_keys_and_values_come_first() -> None:
    """3,000 less 1,550 with three experts: a context of 40 tokens takes 400, and 1,050 hold 10 more experts."""
    made = plan(3000, context_length=40)
    assert (made.mode, made.expert_slots, made.capacity.context_length) == ("experts", 13, 40)
    assert made.capacity.total_bytes <= 3000


# FreeToken's planner took all for experts, and left 8k tokens of context on a card of 96 GB.
def test_beyond_one_context_they_take_a_quarter_and_no_more() -> None:
    made = plan(4000, experts=ExpertFacts(1000, 3, 10, 9000), context_length=20)
    assert made.capacity.num_pages == 2720 // 4 // 40
    assert made.expert_slots == 3 + (2720 - 17 * 40) // 10


def test_a_cache_as_it_was_set_beside_keys_and_values_as_they_were_set() -> None:
    made = plan(3000, cache=750, kv_cache_tokens=40)
    assert (made.expert_slots, made.capacity.kv_capacity_tokens) == (7, 40)
    assert made.capacity.facts.expert_bytes == 700


def test_all_experts_is_the_most() -> None:
    made = plan(100_000)
    assert (made.mode, made.expert_slots) == ("experts", 20)


def test_auto_keeps_everything_in_memory_where_it_fits() -> None:
    kept, moved = plan(4600, "auto", context_length=40), plan(3000, "auto", context_length=40)
    assert (kept.mode, kept.expert_slots, kept.capacity.facts.weight_bytes) == ("none", None, 2900)
    assert (moved.mode, moved.expert_slots) == ("experts", 13)
    assert plan(4600, "auto", cache=400).expert_slots == 4, "a size is a wish for a cache of that size"


def test_a_model_without_experts() -> None:
    assert plan(3000, "auto", experts=None).expert_slots is None
    assert plan(3000, "none", experts=None).mode == "none"
    with pytest.raises(
        CapacityError, match=r"^offload experts: the model has no experts to keep on disk: leave out --off"
    ):
        plan(3000, "experts", experts=None)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "no cache at all",
        {"available": 3000, "cache": 0},
        "expert_cache 0 bytes holds 0 experts of 100 bytes, but one token needs 3 in a layer: raise --expert-cache "
        "(spec.offload.expertCache) to 300 or more, or leave it out",
    ),
    ("one expert", {"available": 3000, "cache": 100}, "expert_cache 100 bytes holds 1 experts"),
    ("one byte too little", {"available": 3000, "cache": 299}, "expert_cache 299 bytes holds 2 experts"),
    (
        "more than all",
        {"available": 9000, "cache": 2100},
        "expert_cache 2,100 bytes holds 21 experts of 100 bytes, more than the model's 20: lower --expert-cache "
        "(spec.offload.expertCache) to 2,000, or leave it out",
    ),
    ("more than there is", {"available": 2500, "cache": 2000}, "the model does not fit into memory: weights 1,000"),
    (
        "B39 not even the smallest cache",
        {"available": 1549},
        "the model does not fit into memory: weights 1,000 bytes + one step 250 bytes + the expert cache 300 bytes = "
        "1,550 bytes",
    ),
    (
        "B39 keys and values that were set",
        {"available": 3000, "kv_cache_tokens": 146},
        "kv_cache_tokens 146 needs 1,480 bytes (10 for each token), but of 3,000 bytes available, weights take 1,000 "
        "and one step takes 250, the expert cache takes 300, which leaves 1,450",
    ),
    ("a context that was set", {"available": 2000, "context_length": 46}, "context_length 46 needs 460 bytes"),
    (
        "resident, and too large",
        {"available": 3000, "mode": "none"},
        "the model does not fit into memory: weights 2,900 bytes",
    ),
]


@pytest.mark.parametrize(("values", "sentence"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_refused_with_the_sum(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CapacityError, match=f"^{re.escape(sentence)}") as told:
        plan(**values)
    assert ("--offload (spec.offload.mode) auto" in str(told.value)) == (values.get("mode") == "none")


def test_b39_the_exact_fit() -> None:
    made = plan(1550 + 40)
    assert (made.expert_slots, made.capacity.context_length, made.capacity.total_bytes) == (3, 4, 1590)


FACTS = st.builds(
    MemoryFacts,
    available_bytes=st.integers(0, 20_000),
    weight_bytes=st.integers(0, 3000),
    transient_bytes=st.integers(0, 1000),
    kv_bytes_per_token=st.integers(1, 50),
    state_bytes=st.sampled_from([0, 0, 70]),
)


@given(
    facts=FACTS,
    experts=st.builds(ExpertFacts, st.integers(8, 100), st.integers(1, 8), st.integers(1, 200), st.integers(8, 20_000)),
    mode=st.sampled_from(["none", "experts", "auto"]),
    cache=st.none() | st.integers(0, 20_000),
    values=st.fixed_dictionaries(
        {
            "model_window": st.integers(2, 300),
            "running_slots": st.integers(1, 8),
            "page_size": st.sampled_from([1, 4, 16]),
            "context_length": st.none() | st.integers(2, 300),
            "kv_cache_tokens": st.none() | st.integers(1, 600),
            "paused_kv_bytes": st.none() | st.integers(0, 5000),
        }
    ),
)
def test_no_plan_exceeds_the_memory_and_every_step_can_run(
    facts: MemoryFacts, experts: ExpertFacts, mode: Offload, cache: int | None, values: dict[str, Any]
) -> None:
    cache = None if mode == "none" else cache
    try:
        made = plan_memory(facts, experts, mode=mode, expert_cache_bytes=cache, kept_outputs_bytes=30, **values)
    except CapacityError:
        return
    assert made.capacity.total_bytes <= facts.available_bytes
    assert made.capacity.num_pages * values["page_size"] >= made.capacity.context_length
    assert values["context_length"] in (None, made.capacity.context_length)
    assert values["kv_cache_tokens"] in (None, made.capacity.kv_capacity_tokens)
    if made.expert_slots is None:
        assert (made.mode, mode != "experts") == ("none", True)
        assert made.capacity.facts.weight_bytes == facts.weight_bytes + experts.all_bytes
        return
    assert experts.experts_per_token <= made.expert_slots <= experts.count
    assert made.capacity.facts.expert_bytes == made.expert_slots * experts.slot_bytes
    if cache is not None:
        assert made.expert_slots == cache // experts.slot_bytes
