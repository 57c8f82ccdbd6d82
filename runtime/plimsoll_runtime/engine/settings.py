"""How large the engine is: every bound of the schedule and of the page pool, resolved once at start.

Owns `EngineSettings`. In: what the memory plan and the contract decided. It knows no model and no bytes. Invariant: the
pool holds at least one whole context, so the oldest sequence can always reach its grant.
"""

from bisect import bisect_right
from dataclasses import dataclass

from plimsoll_runtime.contract.config import (
    DEFAULT_MAX_WAIT_SECONDS,
    DEFAULT_QUANTUM_TOKENS,
    PRESET_WEIGHTS,
    RuntimeConfig,
)

DEFAULT_PAGE_SIZE = 16
"""Tokens of one page: small enough that prompts share most of a common beginning, large enough for short tables."""

DEFAULT_STEP_TOKENS = 512
"""Tokens that one step computes at most: what a running stream waits for while a long prompt is prefilled."""

DEFAULT_HEADROOM_TOKENS = 64
"""Room to grow that each running sequence must have before another one is let in; less makes preemptions frequent."""

CHECKPOINT_PAGES = 4
"""While it decodes, a sequence's state is copied whenever so many pages became full, and the copy before dropped."""

LOGITS_ROWS = 64
"""Rows whose logits exist at one time, which bounds memory however many rows a step wants."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How sequences share the slots (engine/fairness.py says what it means).

    A sequence is on level i once it has written `thresholds[i - 1]` tokens; level i is guaranteed `weights[i]` parts of
    the slots. `quantum_tokens` None: a slot is kept to the end. `by_tenant` False: all are one tenant.
    """

    thresholds: tuple[int, ...] = ()
    weights: tuple[int, ...] = (1,)
    quantum_tokens: int | None = None
    max_wait_seconds: float = DEFAULT_MAX_WAIT_SECONDS
    by_tenant: bool = True

    def __post_init__(self) -> None:
        """Raises ValueError for weights that do not match the thresholds, or a bound below 1."""
        if len(self.weights) != len(self.thresholds) + 1:
            raise ValueError(f"{len(self.thresholds)} thresholds make one level more, but weights are {self.weights}")
        rising = all(low < high for low, high in zip((0, *self.thresholds), self.thresholds, strict=False))
        if not rising or min(self.weights) < 1 or (self.quantum_tokens is not None and self.quantum_tokens < 1):
            raise ValueError(f"thresholds must rise, and thresholds, weights and the quantum be at least 1: {self}")

    def level_of(self, output_tokens: int) -> int:
        """The level of a sequence that has written `output_tokens`."""
        return bisect_right(self.thresholds, output_tokens)


def make_schedule(config: RuntimeConfig, default_output_tokens: int) -> Schedule:
    """What the configuration says, with the effective default output limit as the border of the foreground.

    `interactive` takes an eighth and a half of that limit too, moved apart where it is tiny.
    """
    by_tenant = config.fairness == "api-key"
    if config.scheduling == "fifo":
        return Schedule(by_tenant=by_tenant)
    thresholds = config.level_thresholds
    if thresholds is None:
        thresholds = (default_output_tokens,)
        if config.scheduling == "interactive":
            first = max(1, default_output_tokens // 8)
            second = max(first + 1, default_output_tokens // 2)
            thresholds = (first, second, max(second + 1, default_output_tokens))
    return Schedule(
        thresholds=thresholds,
        weights=PRESET_WEIGHTS[config.scheduling] if config.level_weights is None else config.level_weights,
        quantum_tokens=DEFAULT_QUANTUM_TOKENS if config.quantum_tokens is None else config.quantum_tokens,
        max_wait_seconds=DEFAULT_MAX_WAIT_SECONDS if config.max_wait is None else config.max_wait,
        by_tenant=by_tenant,
    )


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Bounds of one engine.

    `num_tokens` is the number of ids that the tokenizer can write: rows of the logits beyond it are padding and are
    never sampled. `step_tokens` is raised where it could not feed every slot and one page of prefill. `host_pages` is
    how many pages of paused sequences the host memory holds. `num_states` is 0 for models that keep none; one state
    takes as much host memory as `state_pages` pages.
    """

    running_slots: int
    context_length: int
    num_pages: int
    num_tokens: int
    detects_runaways: bool
    page_size: int = DEFAULT_PAGE_SIZE
    step_tokens: int = DEFAULT_STEP_TOKENS
    headroom_tokens: int = DEFAULT_HEADROOM_TOKENS
    prefix_caching: bool = True
    schedule: Schedule = Schedule()
    host_pages: int = 0
    num_states: int = 0
    state_pages: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for a pool that cannot hold one context, too few states, or a bound below 1."""
        smallest = min(self.running_slots, self.context_length, self.num_tokens, self.page_size, self.step_tokens)
        if smallest < 1:
            raise ValueError(f"every bound of the engine must be at least 1, but {self} holds {smallest}")
        if self.num_pages * self.page_size < self.context_length:
            raise ValueError(
                f"context_length {self.context_length:,} exceeds the {self.num_pages:,} pages of {self.page_size:,} "
                "tokens: raise num_pages or lower context_length"
            )
        if 0 < self.num_states < self.running_slots:
            raise ValueError(f"{self.num_states:,} states are too few for {self.running_slots:,} running slots")

    @property
    def keeps_states(self) -> bool:
        """Whether the model has layers that keep a state for each sequence."""
        return self.num_states > 0

    @property
    def step_budget_tokens(self) -> int:
        """Tokens that one step computes at most."""
        return step_budget_tokens(self.step_tokens, self.running_slots, self.page_size)

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold `num_tokens`."""
        return -(-num_tokens // self.page_size)


def step_budget_tokens(step_tokens: int, running_slots: int, page_size: int) -> int:
    """Tokens of one step: decoding sequences come first, and prefill always keeps at least one page."""
    return max(step_tokens, running_slots + page_size)
