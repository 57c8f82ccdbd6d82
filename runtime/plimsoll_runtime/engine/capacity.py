"""The memory plan: what fits, computed in integers before any weight is read.

Owns the effective context length, the size of the KV pool, the number of states where a model keeps such, and the host
memory of paused sequences (section 3, point 10 of the design). In: bytes and tokens as they were measured and
configured. Out: a `CapacityPlan`, or a `CapacityError` with one sentence that writes the sum out and names the setting.
It knows no tensors. Invariants: weights + experts + states + KV + transients <= available, and on a CPU what paused
sequences may take is in that sum; there is a state for each running slot, where the model keeps states at all; the pool
holds at least one context; a configured context is served as configured or not at all.
"""

from dataclasses import dataclass, replace

from plimsoll_runtime.contract.config import field_names

SMALLEST_CONTEXT = 2
"""One token of a prompt and one of an answer."""


SPARE_STATES = 3
"""For each running slot, as far as a quarter of the memory that is left allows: states of paused sequences, and
checkpoints that a known beginning can start from. A configured context or cache goes before them."""


class CapacityError(Exception):
    """The configuration does not fit: the message is the one sentence that the process ends with."""


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Bytes that the plan adds up. `transient_bytes` is the most that one step needs besides weights and cache."""

    available_bytes: int
    weight_bytes: int
    transient_bytes: int
    kv_bytes_per_token: int
    host_bytes: int | None = None
    """Available to paused sequences besides. None: the host's memory is the device's, and all have to share it."""
    paused_bytes: int = 0
    """What was configured for paused sequences, where all share one memory."""
    state_bytes: int = 0
    """What one sequence's state takes, beside its keys and values; most models keep none."""
    num_states: int = 0
    expert_bytes: int = 0
    """What a cache of experts takes; the weights are then those without the experts."""

    @property
    def kv_room_bytes(self) -> int:
        """What is left for the cache; below zero when not even the weights fit."""
        claimed = self.weight_bytes + self.expert_bytes + self.transient_bytes + self.paused_bytes + self.states_bytes
        return self.available_bytes - claimed

    @property
    def states_bytes(self) -> int:
        """All states together."""
        return self.num_states * self.state_bytes

    def sum_in_words(self) -> str:
        """The sum as a sentence's subordinate part."""
        paused = f", paused_kv takes {self.paused_bytes:,}" if self.paused_bytes else ""
        paused += f", {self.num_states:,} states take {self.states_bytes:,}" if self.num_states else ""
        paused += f", the expert cache takes {self.expert_bytes:,}" if self.expert_bytes else ""
        return (
            f"of {self.available_bytes:,} bytes available, weights take {self.weight_bytes:,} and one step takes "
            f"{self.transient_bytes:,}{paused}, which leaves {max(self.kv_room_bytes, 0):,} for keys and values"
        )


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """What the server will have. `kv_capacity_tokens` is as configured where it was; the pages hold at least that."""

    context_length: int
    kv_capacity_tokens: int
    num_pages: int
    page_size: int
    kv_bytes: int
    host_pages: int
    facts: MemoryFacts

    @property
    def host_kv_bytes(self) -> int:
        """What paused sequences may take of the host's memory: it is used as they come, not taken at the start."""
        return self.host_pages * self.page_size * self.facts.kv_bytes_per_token

    @property
    def total_bytes(self) -> int:
        """Weights, experts, cache, states and transients, and what paused sequences take of the same memory."""
        paused = self.host_kv_bytes if self.facts.host_bytes is None else 0
        facts = self.facts
        weights = facts.weight_bytes + facts.expert_bytes
        return weights + self.kv_bytes + facts.states_bytes + facts.transient_bytes + paused

    @property
    def state_pages(self) -> int:
        """Pages of host memory that one state takes."""
        return _pages(self.facts.state_bytes, self.page_size * self.facts.kv_bytes_per_token)


def plan_capacity(
    facts: MemoryFacts,
    *,
    model_window: int,
    running_slots: int,
    page_size: int,
    context_length: int | None,
    kv_cache_tokens: int | None,
    paused_kv_bytes: int | None = None,
) -> CapacityPlan:
    """Resolve the context length, the pool and the host's pages. None means "not configured". Raises CapacityError.

    Paused sequences get what was configured for them before the pool is sized. Not configured, they get what the
    pool leaves: half of that, and no more than twice the pool, so that one can leave while another comes back.
    """
    page_bytes = facts.kv_bytes_per_token * page_size
    _check_window(context_length, model_window)
    wanted_tokens = next((tokens for tokens in (kv_cache_tokens, context_length) if tokens is not None), 0)
    facts = _with_states(facts, running_slots, _pages(wanted_tokens, page_size) * page_bytes, paused_kv_bytes)
    _check_weights(facts, max(facts.kv_room_bytes, 0) // page_bytes * page_size)
    _check_paused_kv(facts, paused_kv_bytes, page_bytes)
    if paused_kv_bytes is not None and facts.host_bytes is None:
        facts = replace(facts, paused_bytes=paused_kv_bytes)
    most_pages = facts.kv_room_bytes // page_bytes
    _check_kv_cache_tokens(facts, kv_cache_tokens, most_pages, page_size)
    held_tokens = kv_cache_tokens if kv_cache_tokens is not None else most_pages * page_size
    context = context_length if context_length is not None else min(model_window, held_tokens)
    _check_context(facts, context, held_tokens, kv_cache_tokens)
    if kv_cache_tokens is not None:
        num_pages = _pages(kv_cache_tokens, page_size)
    else:
        num_pages = min(most_pages, running_slots * _pages(context, page_size))
    return CapacityPlan(
        context_length=context,
        kv_capacity_tokens=kv_cache_tokens if kv_cache_tokens is not None else num_pages * page_size,
        num_pages=num_pages,
        page_size=page_size,
        kv_bytes=num_pages * page_bytes,
        host_pages=_host_pages(facts, paused_kv_bytes, num_pages, page_bytes),
        facts=facts,
    )


def step_transient_bytes(
    *,
    step_tokens: int,
    logit_rows: int,
    hidden_size: int,
    feed_forward_size: int,
    query_size: int,
    vocab_size: int,
    context_tokens: int = 0,
    delta_size: int = 0,
    pair_size: int = 0,
) -> int:
    """The most that one step holds at a time in float32, from the widths of a layer. `query_size` is heads x head_dim.

    Per token: the residual and its norm, queries with their rotated copy, keys, values and the attention's output, the
    two branches of the feed-forward with their product, and what it sees of `context_tokens` (a byte of mask and its
    float). `delta_size` numbers are held besides in a layer that keeps states, `pair_size` in one whose experts are
    computed at once. Per logit row: the row, and a copy in float64.
    """
    numbers = 3 * hidden_size + 5 * query_size + 3 * feed_forward_size + delta_size + pair_size
    per_token = 4 * numbers + context_tokens * (1 + 4)
    return step_tokens * per_token + logit_rows * vocab_size * (4 + 8)


def _pages(num_tokens: int, page_size: int) -> int:
    return -(-num_tokens // page_size)


def _with_states(facts: MemoryFacts, running_slots: int, wanted_bytes: int, paused_kv_bytes: int | None) -> MemoryFacts:
    """One state for each running slot, without which nothing runs, and spare ones from what is left beside the keys and
    values that were asked for."""
    if not facts.state_bytes:
        return facts
    if paused_kv_bytes is not None and facts.host_bytes is None:
        wanted_bytes += paused_kv_bytes
    left_bytes = max(replace(facts, num_states=running_slots).kv_room_bytes - wanted_bytes, 0)
    spare = min(SPARE_STATES * running_slots, left_bytes // 4 // facts.state_bytes)
    return replace(facts, num_states=running_slots + spare)


def _host_pages(facts: MemoryFacts, paused_kv_bytes: int | None, num_pages: int, page_bytes: int) -> int:
    if paused_kv_bytes is not None:
        return paused_kv_bytes // page_bytes
    left_bytes = facts.kv_room_bytes - num_pages * page_bytes if facts.host_bytes is None else facts.host_bytes
    state_pages = facts.num_states * _pages(facts.state_bytes, page_bytes)
    return min(left_bytes // 2 // page_bytes, 2 * (num_pages + state_pages))


def _check_paused_kv(facts: MemoryFacts, paused_kv_bytes: int | None, page_bytes: int) -> None:
    """One page must remain for the cache: what is missing beyond that is refused as such."""
    room = facts.kv_room_bytes - page_bytes if facts.host_bytes is None else facts.host_bytes
    if paused_kv_bytes is not None and paused_kv_bytes > max(room, 0):
        rest = facts.sum_in_words() if facts.host_bytes is None else f"the host has {facts.host_bytes:,} available"
        raise CapacityError(
            f"paused_kv {paused_kv_bytes:,} bytes exceeds what there is: {rest}: lower {field_names('paused_kv')} "
            "or raise the memory limit (spec.resources.limits.memory)"
        )


def _check_window(context_length: int | None, model_window: int) -> None:
    if context_length is not None and context_length > model_window:
        raise CapacityError(
            f"context_length {context_length:,} exceeds the model's window of {model_window:,} tokens: "
            f"lower {field_names('context_length')} to {model_window:,} or less, or leave it out"
        )


def _check_weights(facts: MemoryFacts, room_tokens: int) -> None:
    if facts.kv_room_bytes < 0 or room_tokens < SMALLEST_CONTEXT:
        needed = facts.weight_bytes + facts.expert_bytes + facts.transient_bytes + facts.states_bytes
        states = f" + {facts.num_states:,} states {facts.states_bytes:,} bytes" if facts.num_states else ""
        states += f" + the expert cache {facts.expert_bytes:,} bytes" if facts.expert_bytes else ""
        raise CapacityError(
            f"the model does not fit into memory: weights {facts.weight_bytes:,} bytes + one step "
            f"{facts.transient_bytes:,} bytes{states} = {needed:,} bytes, and {facts.kv_bytes_per_token:,} bytes for "
            f"each token of context, exceed the {facts.available_bytes:,} bytes available: raise the memory limit "
            "(spec.resources.limits.memory), or serve a smaller model with --model (spec.model.source)"
        )


def _check_kv_cache_tokens(facts: MemoryFacts, kv_cache_tokens: int | None, most_pages: int, page_size: int) -> None:
    if kv_cache_tokens is not None and _pages(kv_cache_tokens, page_size) > most_pages:
        needed = _pages(kv_cache_tokens, page_size) * page_size * facts.kv_bytes_per_token
        raise CapacityError(
            f"kv_cache_tokens {kv_cache_tokens:,} needs {needed:,} bytes ({facts.kv_bytes_per_token:,} for each token)"
            f", but {facts.sum_in_words()} ({most_pages * page_size:,} tokens): lower {field_names('kv_cache_tokens')} "
            "or raise the memory limit (spec.resources.limits.memory)"
        )


def _check_context(facts: MemoryFacts, context: int, held_tokens: int, kv_cache_tokens: int | None) -> None:
    if context <= held_tokens and context >= SMALLEST_CONTEXT:
        return
    if kv_cache_tokens is not None:
        raise CapacityError(
            f"context_length {max(context, SMALLEST_CONTEXT):,} exceeds kv_cache_tokens {kv_cache_tokens:,}: raise "
            f"{field_names('kv_cache_tokens')} or lower {field_names('context_length')}"
        )
    needed = context * facts.kv_bytes_per_token
    raise CapacityError(
        f"context_length {context:,} needs {needed:,} bytes of keys and values ({facts.kv_bytes_per_token:,} for each "
        f"token), but {facts.sum_in_words()} ({held_tokens:,} tokens): lower {field_names('context_length')} to "
        f"{held_tokens:,} or less, or raise the memory limit (spec.resources.limits.memory)"
    )
