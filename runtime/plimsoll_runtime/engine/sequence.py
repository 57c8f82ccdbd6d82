"""One stream of tokens, from its place in the queue to its end, and the request that it belongs to.

Owns the state of sequences and requests inside the engine. In: an `AdmittedRequest`. It decides nothing: the scheduler
moves sequences and the engine ends them. Invariants: after the prompt, `token_ids` holds sampled ids and nothing else,
and their number is what the budget is compared with; the page table holds the `computed_tokens`, unless `host_pages`
say that the host does. What samples the next token is (seed, choice, position), the ids so far and the rule that
follows them, all of them here: so a sequence can leave the device at any token border and nothing else has to travel
with it.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from plimsoll_runtime.admitted import AdmittedPrompt, AdmittedRequest
from plimsoll_runtime.engine.prefix_cache import PageChain
from plimsoll_runtime.engine.settings import EngineSettings
from plimsoll_runtime.events import TokenLogprobs
from plimsoll_runtime.token_rules import TokenRule

SequenceState = Literal["waiting", "running", "paused", "finished"]
"""Waiting: nothing is computed, or nothing that was is kept. Paused: without a slot, pages kept here or on the host."""


@dataclass(slots=True)
class PromptProgress:
    """What the sequences of one prompt share: one of them prefills it, the others start from its pages.

    `leader` is the one that prefills; should it leave before it is done, the next one takes its place.
    `cached_tokens` is what an earlier request had computed: the siblings report the leader's number, since what
    they share among themselves was computed for this request. `logprobs` grows with the prefill where asked for.
    """

    leader: "Sequence | None" = None
    prefilled: bool = False
    cached_tokens: int | None = None
    logprobs: list[TokenLogprobs | None] | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of one prompt. Compared by identity."""

    request: AdmittedRequest
    choice: int
    prompt: AdmittedPrompt
    progress: PromptProgress
    chain: PageChain | None
    """None where pages are neither looked for nor kept."""
    token_ids: list[int]
    """Prompt, then output."""
    state: SequenceState = "waiting"
    pages: list[int] = field(default_factory=list)
    state_slot: int | None = None
    """Where its state lies on the device, for models that keep one."""
    computed_tokens: int = 0
    registered_pages: int = 0
    prefill_reported: bool = False
    output_counts: Counter[int] = field(default_factory=Counter)
    rule: TokenRule | None = None
    # Below: the schedule's own, written by scheduler.py, fairness.py and residency.py alone.
    arrival_index: int = 0
    level: int = 0
    is_demoted: bool = False
    turn_left: float = 0.0
    is_owed: bool = False
    has_started: bool = False
    waiting_since: float = 0.0
    charged_tokens: int = 0
    host_pages: int = 0
    last_checkpoint: int | None = None
    num_evictions: int = 0
    served_since_eviction: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.prompt.token_ids)

    @property
    def output_tokens(self) -> int:
        """Sampled so far, end tokens included."""
        return len(self.token_ids) - len(self.prompt.token_ids)

    @property
    def pending_tokens(self) -> int:
        """Known tokens whose keys and values are not computed: 1 while decoding, more while prefilling."""
        return len(self.token_ids) - self.computed_tokens

    @property
    def decodes(self) -> bool:
        """Whether it only goes on from its last token. A prompt of one token is a prompt."""
        return self.output_tokens > 0 and self.pending_tokens == 1

    @property
    def remaining_tokens(self) -> int:
        """What the grant still allows."""
        return self.prompt.budget.max_output_tokens - self.output_tokens

    @property
    def is_resident(self) -> bool:
        """Whether it holds anything on the device."""
        return bool(self.pages) or self.state_slot is not None

    @property
    def collects_prompt_logprobs(self) -> bool:
        """Whether rows of the prompt are still to be scored by this sequence."""
        logprobs = self.progress.logprobs
        return logprobs is not None and self.progress.leader is self and len(logprobs) < self.prompt_tokens

    def append(self, token_id: int) -> None:
        """Count one sampled id."""
        self.token_ids.append(token_id)
        self.output_counts[token_id] += 1
        if self.rule is not None:
            self.rule.advance(token_id)


@dataclass(slots=True, eq=False)
class RequestProgress:
    """A request in the house: its sequences that have not ended. It started when its first sequence got a slot, and is
    paused, as far as was said, while none has one."""

    request: AdmittedRequest
    arrival: float
    sequences: list[Sequence]
    started: bool = False
    paused: bool = False

    @property
    def is_running(self) -> bool:
        """Whether one of its sequences has a slot."""
        return any(sequence.state == "running" for sequence in self.sequences)

    @property
    def waiting_since(self) -> float:
        """Since when none of its sequences has a slot, where that is so."""
        return max(sequence.waiting_since for sequence in self.sequences) if self.started else self.arrival


def split_request(request: AdmittedRequest, settings: EngineSettings) -> list[Sequence]:
    """The sequences of a request in order of their choice."""
    sequences: list[Sequence] = []
    for index, prompt in enumerate(request.prompts):
        wants_logprobs = request.prompt_logprobs is not None
        progress = PromptProgress(logprobs=[None] if wants_logprobs else None)
        for j in range(request.num_choices):
            sequences.append(
                Sequence(
                    request=request,
                    choice=index * request.num_choices + j,
                    prompt=prompt,
                    progress=progress,
                    chain=_chain(request, index, settings),
                    token_ids=list(prompt.token_ids),
                    rule=None if request.new_rule is None else request.new_rule(prompt),
                )
            )
    return sequences


def _chain(request: AdmittedRequest, prompt_index: int, settings: EngineSettings) -> PageChain | None:
    """With the prefix cache off, pages are still shared among the choices of one prompt, and with nobody else."""
    if settings.prefix_caching:
        return PageChain(f"tenant {request.tenant}", settings.page_size)
    if request.num_choices > 1:
        return PageChain(f"request {request.request_id} prompt {prompt_index}", settings.page_size)
    return None
