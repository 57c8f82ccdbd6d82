"""Which sequences compute what in the next step: slots that a runaway cannot hold.

The idea in one paragraph: a sequence runs, first come first served, until it has written as many tokens as a request
gets that names no limit. That is what was declared as normal, and nobody has to guess lengths. Beyond that it is
background: it goes on in any slot that nobody else wants, keeps a guaranteed share when others do, and gives its slot
up between two tokens, with its keys and values kept. So one answer of 32,767 tokens delays a short one by a step, not
by nine minutes, and still ends; and while nobody writes beyond the default, the order is exactly that of arrival.

Three files, to be read in this order:

1. `fairness.py` decides whose turn it is: tenants, then levels, then arrival. All bounds stand there.
2. `residency.py` decides who has pages, who moves to host memory, and who loses its numbers.
3. This file brings both together once per step, and deals out the step's tokens.

Owns the slots. In: sequences in order of arrival, the time, and what a step computed. Out: a `Batch`. Pure Python: no
torch, no asyncio, no clock of its own; the same calls give the same schedule. It runs without an engine, for example
under a virtual clock:

    scheduler = Scheduler(settings)
    scheduler.enqueue(split_request(request, settings), now)
    batch = scheduler.plan(now)                             # empty when nobody is here
    scheduler.commit(batch)                                 # the step is computed
    for chunk in batch.chunks:                              # at its new time:
        if chunk.samples:
            chunk.sequence.append(token_id)
            if chunk.sequence.remaining_tokens == 0:
                scheduler.finish(chunk.sequence)

The step (vLLM v1's rule): sequences that decode first, one token each; then chunks of prompts, oldest first, up to the
step's tokens. Slots change before that, at token borders only: the next `Pick` is carried out if the pages for it can
be had, until there is none. A start that lacks pages or tokens of the step holds up all later starts, so that big
requests are not overtaken for ever; who is paused on its pages goes on meanwhile.

Invariants: no more run than there are slots; no slot is free while somebody could use it; somebody always runs while
somebody is here, and each step brings a sequence forward that then keeps what it computed, or was the last resort of
`residency.py`: so every sequence ends.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Items

from plimsoll_runtime.engine.batch import Batch, Chunk, make_chunk
from plimsoll_runtime.engine.fairness import Fairness, Pick
from plimsoll_runtime.engine.residency import Residency
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
    """Not safe across threads: the engine's thread owns it."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._fairness = Fairness(settings.schedule)
        self._residency = Residency(settings)
        self._num_arrived = 0
        self.running: list[Sequence] = []
        self.num_pauses = 0

    @property
    def fairness(self) -> Fairness:
        """For reading: lines and counters."""
        return self._fairness

    @property
    def residency(self) -> Residency:
        """For reading: pages and counts."""
        return self._residency

    def enqueue(self, sequences: Iterable[Sequence], now: float) -> None:
        """Sequences that arrived after all others."""
        for sequence in sequences:
            sequence.arrival_index = self._num_arrived
            sequence.waiting_since = now
            self._num_arrived += 1
            self._fairness.arrive(sequence)

    def plan(self, now: float) -> Batch:
        """The next step's chunks. Changes slots and pages; what has to be moved for that is in the batch."""
        self._fairness.settle(self.running)
        self._give_slots(now)
        plan = _StepPlan(self._settings.step_budget_tokens)
        by_age = sorted(self.running, key=lambda sequence: sequence.arrival_index)
        decoding = [sequence for sequence in by_age if sequence.decodes]
        prefilling = [sequence for sequence in by_age if not sequence.decodes]
        for sequence in decoding + prefilling:
            self._extend(sequence, plan, now)
        return Batch(tuple(plan.chunks.values()), self._residency.take_moves())

    def commit(self, batch: Batch) -> None:
        """The step computed the batch: count its tokens, and keep the pages that became full."""
        for chunk in batch.chunks:
            sequence = chunk.sequence
            fresh = min(chunk.end_position, sequence.prompt_tokens) - max(chunk.first_position, sequence.charged_tokens)
            cached = chunk.first_position if sequence.charged_tokens == 0 else 0
            self._fairness.charge(sequence, max(0, fresh), cached, int(chunk.samples))
            sequence.charged_tokens = max(sequence.charged_tokens, chunk.end_position)
            sequence.served_since_eviction += int(chunk.samples)
            sequence.computed_tokens = chunk.end_position
            if chunk.end_position >= sequence.prompt_tokens:
                sequence.progress.prefilled = True
            self._residency.register_full_pages(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out wherever it is; its slot, pages and host memory are free at once."""
        self._fairness.leave(sequence)
        if sequence.state == "running":
            self.running.remove(sequence)
        self._residency.leave(sequence)
        sequence.state = "finished"
        if sequence.progress.leader is sequence and not sequence.progress.prefilled:
            sequence.progress.leader = None

    def lose(self, sequence: Sequence) -> None:
        """The host memory could not take what a move brought it: it is computed again."""
        self._residency.lose(sequence)

    def distrust(self, sequence: Sequence) -> None:
        """What this sequence computed is not to be reused: nobody finds its pages again."""
        for page in sequence.pages:
            self._residency.cache.forget(page)

    def waiting(self) -> list[Sequence]:
        """All without a slot: those that never had one, and the paused."""
        return list(self._fairness.sequences())

    def check_integrity(self) -> None:
        """Assert that slots, lines and pages agree."""
        resting = self.waiting()
        assert len(self.running) <= self._settings.running_slots
        assert len({*self.running, *resting}) == len(self.running) + len(resting)
        assert all(sequence.state == "running" for sequence in self.running)
        assert all(sequence.state in {"waiting", "paused"} for sequence in resting)
        self._residency.check_integrity(self.running + resting)

    def _give_slots(self, now: float) -> None:
        """Carry picks out until there is none. Whoever cannot use a slot now is left out for this step."""
        left_out: set[Sequence] = set()
        starts = True
        tokens_left = self._settings.step_budget_tokens - sum(sequence.pending_tokens for sequence in self.running)

        def may_run(sequence: Sequence) -> bool:
            return sequence not in left_out and (starts or sequence.state == "paused")

        while True:
            free_slots = self._settings.running_slots - len(self.running)
            pick = self._fairness.pick(self.running, free_slots, now, may_run)
            if pick is None:
                return
            freed = pick.displaces.pending_tokens if pick.displaces is not None else 0
            fits = pick.sequence.decodes or tokens_left + freed > 0
            evicted = self._carry_out(pick, now) if fits and self._is_led(pick.sequence) else None
            if evicted is None:
                left_out.add(pick.sequence)
                starts = starts and (pick.sequence.state == "paused" or _waits_for_another(pick.sequence))
            else:
                left_out.update(evicted)
                tokens_left += freed - pick.sequence.pending_tokens

    def _is_led(self, sequence: Sequence) -> bool:
        """One sequence of a prompt computes it; its siblings start from those pages, and not before they are there."""
        progress = sequence.progress
        if progress.leader is None:
            progress.leader = sequence
        return progress.leader is sequence or progress.prefilled

    def _carry_out(self, pick: Pick, now: float) -> list[Sequence] | None:
        """Who was evicted for it: they do not come back in the same step. None, and nothing changed, where the pages
        cannot be had."""
        sequence = pick.sequence
        others = [other for other in self.running if other is not pick.displaces]
        paused = [other for other in self._fairness.sequences() if other.is_resident and other is not sequence]
        victims = paused if pick.displaces is None else [*paused, pick.displaces]
        evicted = self._residency.room_for(sequence, others, victims, is_forced=not self.running)
        if evicted is None and pick.is_aged:
            victims += [other for other in self._younger_than_the_oldest(others) if not other.is_owed]
            evicted = self._residency.room_for(sequence, others, victims, is_forced=True)
        if evicted is None:
            return None
        if pick.displaces is not None:
            self._stop(pick.displaces, now)
            self.num_pauses += int(pick.displaces not in evicted)
        for victim in evicted:
            self._evict(victim, now)
        self._residency.bring(sequence)
        self._fairness.start(pick)
        sequence.state, sequence.has_started = "running", True
        self.running.append(sequence)
        return evicted

    def _younger_than_the_oldest(self, running: Items[Sequence]) -> list[Sequence]:
        return sorted(running, key=lambda sequence: sequence.arrival_index)[1:]

    def _extend(self, sequence: Sequence, plan: _StepPlan, now: float) -> None:
        """Plan the next chunk of one that runs, if the step has tokens left and it keeps its pages."""
        num_tokens = self._chunk_tokens(sequence, plan.tokens_left)
        if sequence.state != "running" or num_tokens < 1:
            return
        while not self._residency.lease(sequence, sequence.computed_tokens + num_tokens):
            resting = (other for other in self._fairness.sequences() if other.pages)
            victim = self._residency.victim_for_growth(resting, self.running)
            plan.drop(victim)
            self._evict(victim, now)
            if victim is sequence:
                return
        plan.add(make_chunk(sequence, num_tokens))

    def _chunk_tokens(self, sequence: Sequence, tokens_left: int) -> int:
        """As many as the step has left. Where a state is kept, chunks of a prompt end at page borders, and one at the
        last border that another prompt could start from: only there a checkpoint can be taken."""
        num_tokens = min(sequence.pending_tokens, tokens_left)
        page_size, first = self._settings.page_size, sequence.computed_tokens
        last_border = (len(sequence.token_ids) - 1) // page_size * page_size
        if not self._settings.keeps_states or sequence.chain is None or first >= last_border:
            return num_tokens
        border = min(first + num_tokens, last_border) // page_size * page_size
        return border - first if border > first else num_tokens

    def _stop(self, sequence: Sequence, now: float) -> None:
        """Out of its slot; its pages stay, unless it is evicted next."""
        self.running.remove(sequence)
        sequence.state = "paused"
        sequence.waiting_since = now
        self._fairness.stop(sequence)

    def _evict(self, sequence: Sequence, now: float) -> None:
        """Out of its pages, and of its slot before that."""
        if sequence.state == "running":
            self._stop(sequence, now)
        self._residency.evict(sequence)


def _waits_for_another(sequence: Sequence) -> bool:
    """Whether the sibling that computes its prompt waits too: then that one may start, though it be behind."""
    leader = sequence.progress.leader
    return leader is not None and leader is not sequence and leader.state == "waiting"
