"""Which sequences compute what in the next step, and who holds which pages.

Owns the queue, the running slots, the page tables and preemption. In: sequences in order of arrival, and what a step
computed. Out: a `Batch`. It knows no logits, no clock and no events.

The rule (vLLM v1's): decoding sequences first, one token each; then prefill chunks, oldest first, up to the step's
tokens; then new sequences in order of arrival, while slots and pages last and nobody was preempted in this step.

Invariants:
- Every running sequence arrived before every waiting one, so the youngest running one is the last of `running`, and
  preempting it puts it at the head of the queue.
- Pages are leased as tokens need them. On shortage idle cached pages go first, then the youngest running sequence. The
  oldest is preempted by nobody, and the pool holds a whole context: so it always reaches its grant, and then the next
  one is the oldest. No admitted sequence starves.
"""

from collections import deque
from collections.abc import Iterable

from plimsoll_runtime.engine.batch import Batch, Chunk, make_chunk
from plimsoll_runtime.engine.page_allocator import PageAllocator
from plimsoll_runtime.engine.prefix_cache import PrefixCache
from plimsoll_runtime.engine.sequence import Sequence
from plimsoll_runtime.engine.settings import EngineSettings


class _StepPlan:
    """The chunks chosen so far, and the tokens that the step has left."""

    def __init__(self, tokens_left: int) -> None:
        self.chunks: dict[Sequence, Chunk] = {}
        self.tokens_left = tokens_left

    def add(self, chunk: Chunk) -> None:
        self.chunks[chunk.sequence] = chunk
        self.tokens_left -= chunk.num_tokens

    def drop(self, sequence: Sequence) -> None:
        chunk = self.chunks.pop(sequence, None)
        self.tokens_left += chunk.num_tokens if chunk is not None else 0


class Scheduler:
    """Plain first come, first served. Not safe across threads: the engine's thread owns it."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self.allocator = PageAllocator(settings.num_pages)
        self.cache = PrefixCache(self.allocator)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0

    def enqueue(self, sequences: Iterable[Sequence]) -> None:
        """Sequences that arrived after all others."""
        self.waiting.extend(sequences)

    def plan(self) -> Batch:
        """The next step's chunks. Gives slots and pages, takes them from the youngest where they are short."""
        plan = _StepPlan(self._settings.step_budget_tokens)
        preemptions_before = self.preemptions
        decoding = [sequence for sequence in self.running if sequence.pending_tokens == 1]
        prefilling = [sequence for sequence in self.running if sequence.pending_tokens > 1]
        for sequence in decoding + prefilling:
            self._extend(sequence, plan)
        if self.preemptions == preemptions_before:
            self._admit(plan)
        return Batch(tuple(plan.chunks.values()))

    def commit(self, batch: Batch) -> None:
        """The step computed the batch: count its tokens, and keep the pages that became full."""
        for chunk in batch.chunks:
            chunk.sequence.computed_tokens = chunk.end_position
            if chunk.end_position >= chunk.sequence.prompt_tokens:
                chunk.sequence.progress.prefilled = True
            self._register_full_pages(chunk.sequence)

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out wherever it is; its slot and pages are free at once."""
        if sequence.state == "running":
            self.running.remove(sequence)
        elif sequence.state == "waiting":
            self.waiting.remove(sequence)
        self._release_pages(sequence)
        sequence.state = "finished"
        if sequence.progress.leader is sequence and not sequence.progress.prefilled:
            sequence.progress.leader = None

    def distrust(self, sequence: Sequence) -> None:
        """What this sequence computed is not to be reused: nobody finds its pages again."""
        for page in sequence.pages:
            self.cache.forget(page)

    def check_integrity(self) -> None:
        """Assert that no page is lost or doubled, and that every page in use has an owner."""
        self.allocator.check_integrity()
        self.cache.check_integrity()
        references = [0] * self._settings.num_pages
        for sequence in self.running:
            assert len(set(sequence.pages)) == len(sequence.pages)
            assert self._settings.pages_for(sequence.computed_tokens) <= len(sequence.pages)
            for page in sequence.pages:
                references[page] += 1
        assert references == [self.allocator.references(page) for page in range(self._settings.num_pages)]
        assert not any(sequence.pages or sequence.computed_tokens for sequence in self.waiting)
        assert len(self.running) <= self._settings.running_slots

    def _extend(self, sequence: Sequence, plan: _StepPlan) -> None:
        """Plan the next chunk of a running sequence, if the step has tokens left and it keeps its slot."""
        num_tokens = min(sequence.pending_tokens, plan.tokens_left)
        if sequence.state != "running" or num_tokens < 1:
            return
        while not self._lease(sequence, sequence.computed_tokens + num_tokens):
            youngest = self.running[-1]
            plan.drop(youngest)
            self._preempt(youngest)
            if youngest is sequence:
                return
        plan.add(make_chunk(sequence, num_tokens))

    def _lease(self, sequence: Sequence, num_tokens: int) -> bool:
        """Let the page table hold `num_tokens`. False, and nothing changed, when pages are short."""
        count = self._settings.pages_for(num_tokens) - len(sequence.pages)
        if count > 0:
            if not self.cache.make_room(count):
                return False
            sequence.pages += self.allocator.allocate(count, sequence.pages[-1] if sequence.pages else None)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the head of the queue, without pages: prompt and output so far are prefilled again later."""
        self.preemptions += 1
        self.running.remove(sequence)
        self._release_pages(sequence)
        sequence.computed_tokens = 0
        sequence.state = "waiting"
        self.waiting.appendleft(sequence)

    def _admit(self, plan: _StepPlan) -> None:
        """Give slots to the head of the queue while there are slots, pages and tokens of this step."""
        while self.waiting and len(self.running) < self._settings.running_slots and plan.tokens_left > 0:
            sequence = self.waiting[0]
            progress = sequence.progress
            if progress.leader is None:
                progress.leader = sequence
            if progress.leader is not sequence and not progress.prefilled:
                return
            found = self._known_pages(sequence)
            if self.running and not self._has_room(sequence, found):
                return
            self._start(self.waiting.popleft(), found)
            self._extend(sequence, plan)

    def _known_pages(self, sequence: Sequence) -> list[int]:
        """Cached pages that it can start from; at least one token is always left to compute."""
        if sequence.chain is None or sequence.collects_prompt_logprobs:
            return []
        num_pages = (len(sequence.token_ids) - 1) // self._settings.page_size
        return self.cache.find(sequence.chain.digests(sequence.token_ids, num_pages))

    def _has_room(self, sequence: Sequence, found: list[int]) -> bool:
        """Whether it and all that run can grow by the headroom: else letting it in would soon preempt it again."""
        wanted = self._pages_soon(sequence) - len(found)
        wanted += sum(self._pages_soon(other) - len(other.pages) for other in self.running)
        idle_and_found = sum(self.allocator.references(page) == 0 for page in found)
        return wanted <= self.allocator.num_free + self.allocator.num_idle - idle_and_found

    def _pages_soon(self, sequence: Sequence) -> int:
        growth = min(sequence.remaining_tokens, self._settings.headroom_tokens)
        return self._settings.pages_for(len(sequence.token_ids) + growth)

    def _start(self, sequence: Sequence, found: list[int]) -> None:
        for page in found:
            self.allocator.acquire(page)
        sequence.pages = list(found)
        sequence.registered_pages = len(found)
        sequence.computed_tokens = len(found) * self._settings.page_size
        if sequence.progress.cached_tokens is None:
            sequence.progress.cached_tokens = sequence.computed_tokens
        sequence.state = "running"
        self.running.append(sequence)

    def _register_full_pages(self, sequence: Sequence) -> None:
        num_full = sequence.computed_tokens // self._settings.page_size
        if sequence.chain is None or num_full == sequence.registered_pages:
            return
        digests = sequence.chain.digests(sequence.token_ids, num_full)
        for index in range(sequence.registered_pages, num_full):
            self.cache.register(digests[index], sequence.pages[index])
        sequence.registered_pages = num_full

    def _release_pages(self, sequence: Sequence) -> None:
        """The end first, so that eviction shortens a cached beginning from its end."""
        for page in reversed(sequence.pages):
            self.allocator.release(page)
        sequence.pages = []
        sequence.registered_pages = 0
