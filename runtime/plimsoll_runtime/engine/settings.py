"""How large the engine is: every bound of the schedule and of the page pool, resolved once at start.

Owns `EngineSettings`. In: what the memory plan and the contract decided. It knows no flags and no bytes. Invariant: the
pool holds at least one whole context, so the oldest sequence can always reach its grant.
"""

from dataclasses import dataclass

DEFAULT_PAGE_SIZE = 16
"""Tokens of one page: small enough that prompts share most of a common beginning, large enough for short tables."""

DEFAULT_STEP_TOKENS = 512
"""Tokens that one step computes at most: what a running stream waits for while a long prompt is prefilled."""

DEFAULT_HEADROOM_TOKENS = 64
"""Room to grow that each running sequence must have before another one is let in; less makes preemptions frequent."""

LOGITS_ROWS = 64
"""Rows whose logits exist at one time, which bounds memory however many rows a step wants."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Bounds of one engine.

    `num_tokens` is the number of ids that the tokenizer can write: rows of the logits beyond it are padding and are
    never sampled. `step_tokens` is raised where it could not feed every slot and one page of prefill.
    """

    running_slots: int
    context_length: int
    num_pages: int
    num_tokens: int
    page_size: int = DEFAULT_PAGE_SIZE
    step_tokens: int = DEFAULT_STEP_TOKENS
    headroom_tokens: int = DEFAULT_HEADROOM_TOKENS
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        """Raises ValueError for a pool that cannot hold one context, or a bound below 1."""
        smallest = min(self.running_slots, self.context_length, self.num_tokens, self.page_size, self.step_tokens)
        if smallest < 1:
            raise ValueError(f"every bound of the engine must be at least 1, but {self} holds {smallest}")
        if self.num_pages * self.page_size < self.context_length:
            raise ValueError(
                f"context_length {self.context_length:,} exceeds the {self.num_pages:,} pages of {self.page_size:,} "
                "tokens: raise num_pages or lower context_length"
            )

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
