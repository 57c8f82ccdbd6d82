"""What admission promises and the engine accepts: the budget of a request, carried by a type.

Owns `Budget` and `AdmittedRequest`. Only admission/ constructs them (a test reads the syntax tree to be sure); the
engine accepts nothing else, so no sequence runs whose limit was not decided by the law. Knows no HTTP and no text.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from plimsoll_runtime.contract.endpoints import Route
from plimsoll_runtime.token_rules import TokenRule

LimitedBy = Literal["request", "default", "limit", "context"]
DeadlineAction = Literal["finish", "abort"]


@dataclass(frozen=True, slots=True)
class Budget:
    """The decision on one prompt, in tokens. `max_output_tokens` is granted: at least 1, and the answer ends there."""

    prompt_tokens: int
    requested_output_tokens: int | None
    max_output_tokens: int
    limited_by: LimitedBy
    context_length: int


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen, every value resolved.

    `temperature` 0 is argmax whatever the rest says; `top_k` 0 and `top_p` 1 and `min_p` 0 cut nothing off; penalties
    of 0 (presence, frequency) and 1 (repetition) change nothing. `seed` is signed 64 bit; the draw depends on
    (seed, choice, position) alone, never on the batch.
    """

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float]
    seed: int


@dataclass(frozen=True, slots=True)
class AdmittedPrompt:
    """Prompt tokens after the template, special tokens included, and what they may cost."""

    token_ids: tuple[int, ...]
    budget: Budget


@dataclass(frozen=True, slots=True)
class AdmittedRequest:
    """A request inside its budget. It makes `len(prompts) * num_choices` sequences; choice = prompt * num_choices + j.

    `stop_token_ids` end a sequence once it has `min_tokens`; with `ignore_eos` the end tokens are not among them, and
    below `min_tokens` the end tokens in `banned_until_min_tokens` cannot be sampled. `logprobs`/`prompt_logprobs`: how
    many alternatives to report per token (0: only the token itself), or None for no report. Times are seconds of the
    engine's clock: a request not started by `queue_deadline` expires, one that is not done at `deadline` finishes there
    with what it has, or is aborted, as `deadline_action` says. `tenant_weight` is the tenant's share against others';
    with `stop_on_runaway` a repetition ends its sequence, without it a repetition only loses its place in front.
    """

    request_id: str
    route: Route
    tenant: str
    prompts: tuple[AdmittedPrompt, ...]
    num_choices: int
    sampling: Sampling
    stop_token_ids: frozenset[int]
    banned_until_min_tokens: frozenset[int]
    min_tokens: int
    logprobs: int | None
    prompt_logprobs: int | None
    queue_deadline: float
    deadline: float
    deadline_action: DeadlineAction
    tenant_weight: int
    stop_on_runaway: bool
    new_rule: Callable[[AdmittedPrompt], TokenRule] | None = None
    """Makes the rule of one sequence of a prompt; None: nothing binds what is written."""

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts together, as the headers show them."""
        return sum(prompt.budget.prompt_tokens for prompt in self.prompts)

    @property
    def tightest_budget(self) -> Budget:
        """The smallest grant, which the headers show for a list of prompts."""
        return min((prompt.budget for prompt in self.prompts), key=lambda budget: budget.max_output_tokens)
