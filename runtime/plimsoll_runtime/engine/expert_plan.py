"""The memory plan of a mixture whose experts may lie on disk: how many of them have a slot in memory.

Owns the split between keys and values, experts, and the rest. In: the facts of the plan without any expert, what an
expert takes, and what was configured. Out: a `MemoryPlan`, or a `CapacityError` with one sentence. Integers only; it
knows no tensors and no files. The order: what must be there (weights without experts, one step, states, the smallest
cache of experts), then keys and values (what was configured, at least one context, and KV_SHARE of the rest at the
most), then experts, as many as fit. Invariants: the sum is at most what is available; a cache of experts holds those
of one token in one layer, without which nothing runs; a size that was configured is the size, or is refused.
"""

from dataclasses import dataclass, replace
from typing import Literal, TypedDict, Unpack

from plimsoll_runtime.contract.config import Offload, field_names
from plimsoll_runtime.engine.capacity import SPARE_STATES, CapacityError, CapacityPlan, MemoryFacts, plan_capacity

KV_SHARE = 4
"""Keys and values take no more than one part in so many of what both share, beyond the one context that they need."""

PAUSED_SHARE = 8
"""And paused sequences one part in so many of what is left then, where nothing was configured for them."""

NOTHING_TO_OFFLOAD = "the model has no experts"


@dataclass(frozen=True, slots=True)
class ExpertFacts:
    """`all_bytes`: what all experts take where they are resident; `slot_bytes`: one in the cache."""

    count: int
    experts_per_token: int
    slot_bytes: int
    all_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """`expert_slots` None: every expert is resident, or there are none. `reason`: why, for people."""

    capacity: CapacityPlan
    mode: Literal["none", "experts"]
    reason: str
    expert_slots: int | None = None


class PlanSettings(TypedDict):
    """What `plan_capacity` is told; None means "not configured"."""

    model_window: int
    running_slots: int
    page_size: int
    context_length: int | None
    kv_cache_tokens: int | None
    paused_kv_bytes: int | None


def plan_memory(
    facts: MemoryFacts,
    experts: ExpertFacts | None,
    *,
    mode: Offload,
    expert_cache_bytes: int | None,
    kept_outputs_bytes: int,
    **settings: Unpack[PlanSettings],
) -> MemoryPlan:
    """`facts` are those without experts, `kept_outputs_bytes` what one step needs besides with a cache of them;
    `settings` go to `plan_capacity`. Raises CapacityError."""
    if experts is None:
        if mode == "experts":
            raise CapacityError(
                f"offload experts: the model has no experts to keep on disk: leave out {field_names('offload')}"
            )
        return MemoryPlan(plan_capacity(facts, **settings), "none", NOTHING_TO_OFFLOAD)
    resident = replace(facts, weight_bytes=facts.weight_bytes + experts.all_bytes)
    if mode == "none":
        return MemoryPlan(_plan_resident(resident, settings), "none", "as configured")
    cached = replace(facts, transient_bytes=facts.transient_bytes + kept_outputs_bytes)
    if expert_cache_bytes is not None:
        num_slots = _configured_slots(experts, expert_cache_bytes)
        return _with_slots(cached, experts, num_slots, "expert_cache as configured", settings)
    num_slots = _slots_that_fit(cached, experts, settings)
    if mode == "auto" and _slots_that_fit(facts, experts, settings) >= experts.count:
        return MemoryPlan(plan_capacity(resident, **settings), "none", "all experts fit beside keys and values")
    return _with_slots(cached, experts, num_slots, f"experts take what {_kv_words()} leave", settings)


def _plan_resident(facts: MemoryFacts, settings: PlanSettings) -> CapacityPlan:
    try:
        return plan_capacity(facts, **settings)
    except CapacityError as error:
        raise CapacityError(f"{error}; or keep experts on disk with {field_names('offload')} auto") from None


def _with_slots(
    facts: MemoryFacts, experts: ExpertFacts, num_slots: int, reason: str, settings: PlanSettings
) -> MemoryPlan:
    held = replace(facts, expert_bytes=num_slots * experts.slot_bytes)
    return MemoryPlan(plan_capacity(held, **settings), "experts", reason, num_slots)


def _slots_that_fit(facts: MemoryFacts, experts: ExpertFacts, settings: PlanSettings) -> int:
    """After keys and values; never fewer than one token of a layer needs, whether or not that fits."""
    smallest = experts.experts_per_token
    paused = settings["paused_kv_bytes"] if facts.host_bytes is None else 0
    held = replace(
        facts,
        expert_bytes=smallest * experts.slot_bytes,
        num_states=settings["running_slots"] * (1 + SPARE_STATES) if facts.state_bytes else 0,
        paused_bytes=paused or 0,
    )
    left_bytes = held.kv_room_bytes - _kv_bytes(held, settings)
    if paused is None:
        left_bytes -= left_bytes // PAUSED_SHARE
    return min(smallest + max(left_bytes, 0) // experts.slot_bytes, experts.count)


def _kv_bytes(facts: MemoryFacts, settings: PlanSettings) -> int:
    """What keys and values take first, in whole pages: what was configured, at least one context; not configured, as
    much as their share holds."""
    page_bytes = facts.kv_bytes_per_token * settings["page_size"]
    share = max(facts.kv_room_bytes, 0) // KV_SHARE // page_bytes
    tokens, context = settings["kv_cache_tokens"], settings["context_length"]
    if tokens is not None:
        return -(-tokens // settings["page_size"]) * page_bytes
    one = -(-(settings["model_window"] if context is None else context) // settings["page_size"])
    all_slots = one * settings["running_slots"]
    pages = min(share, all_slots) if context is None else max(one, min(share, all_slots))
    return max(pages, 1) * page_bytes


def _configured_slots(experts: ExpertFacts, cache_bytes: int) -> int:
    num_slots = cache_bytes // experts.slot_bytes
    smallest = experts.experts_per_token
    size = f"expert_cache {cache_bytes:,} bytes holds {num_slots:,} experts of {experts.slot_bytes:,} bytes"
    if num_slots < smallest:
        raise CapacityError(
            f"{size}, but one token needs {smallest:,} in a layer: raise {field_names('expert_cache')} to "
            f"{smallest * experts.slot_bytes:,} or more, or leave it out"
        )
    if num_slots > experts.count:
        raise CapacityError(
            f"{size}, more than the model's {experts.count:,}: lower {field_names('expert_cache')} to "
            f"{experts.count * experts.slot_bytes:,}, or leave it out"
        )
    return num_slots


def _kv_words() -> str:
    return f"keys and values (one context, then up to 1/{KV_SHARE} of the rest)"
