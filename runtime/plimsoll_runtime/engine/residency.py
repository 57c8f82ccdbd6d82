"""Where the keys and values of a sequence are, and its state: on the device, in host memory, or nowhere.

Owns page tables, state slots, the host's share of pages, and who loses pages when they are short. In: sequences that
start, grow, come back or leave. Out: page tables and slots, and the moves that the engine makes before the step. It
knows no turns, no bytes and no tensors; it counts the host's memory in pages, a state as `state_pages` of them.

    nothing --start--> on the device <--swap in-- in host memory
       ^                    |   \\----swap out-------->|
       \\-----recompute------/                          \\--(host copy lost)--> nothing

A sequence that is swapped takes copies of all its pages along, shared ones too, and drops its references: what it
shared stays with the others, or with the prefix cache, and nothing on the device waits for its return. It comes back
onto pages of its own, with the numbers that it left with, so its next token is the one it would have had.

A model that keeps states (state_slots.py) needs one slot besides, from start to eviction: whoever has pages has one. A
slot that is short is made by evicting a paused one, as a page is; checkpoints go before that. They are taken where a
chunk of the prompt ends at a page border, and while decoding every few pages, there the newest alone.

Invariants: pages are leased as tokens need them; whoever is paused leases none. Idle cached pages go before anybody
loses any. The oldest that runs loses nothing, and the pool holds a whole context: so it can always grow, ends, and the
next one is the oldest. Recomputing is the last resort, where the host holds no more: it costs time, and never a token.
Only three can cause it: a shallower level that wants the slot, one that is aged, and one that runs and must grow. A
turn of equals never does: whoever does not fit waits until one that runs ends, or until it is aged.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items

from plimsoll_runtime.engine.batch import Move, StateCopy
from plimsoll_runtime.engine.page_allocator import PageAllocator
from plimsoll_runtime.engine.prefix_cache import PrefixCache
from plimsoll_runtime.engine.sequence import Sequence
from plimsoll_runtime.engine.settings import CHECKPOINT_PAGES, EngineSettings
from plimsoll_runtime.engine.state_slots import StateSlots

MANY_EVICTIONS = 3
"""Who was moved so often is moved only when nobody else can be."""


class Residency:
    """Not safe across threads: the scheduler owns it."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self.allocator = PageAllocator(settings.num_pages)
        self.states = StateSlots(settings.num_states)
        self.cache = PrefixCache(self.allocator, self.states if settings.keeps_states else None)
        self.host_pages_used = 0
        self.num_swaps = 0
        self.num_recomputes = 0
        self._moves: list[Move | StateCopy] = []

    def take_moves(self) -> tuple[Move | StateCopy, ...]:
        """What the engine has to move before this step computes."""
        moves, self._moves = tuple(self._moves), []
        return moves

    def lease(self, sequence: Sequence, num_tokens: int) -> bool:
        """Let the page table hold `num_tokens`. False, and nothing changed, when pages are short."""
        count = self._settings.pages_for(num_tokens) - len(sequence.pages)
        if count > 0:
            if not self.cache.make_room(count):
                return False
            sequence.pages += self.allocator.allocate(count, sequence.pages[-1] if sequence.pages else None)
        return True

    def room_for(
        self, sequence: Sequence, running: Items[Sequence], victims: Items[Sequence], is_forced: bool
    ) -> list[Sequence] | None:
        """Who has to be evicted so that it, and all that run, can grow by the headroom; None when that cannot be had.

        Else letting it in would soon evict somebody again. Of the victims only those lose their numbers for it that are
        deeper in the schedule; forced, all of them, also such as were evicted a moment ago.
        """
        found = [] if sequence.state == "paused" else self._known_pages(sequence)
        wanted = self._pages_soon(sequence) - len(sequence.pages) - len(found)
        wanted += sum(self._pages_soon(other) - len(other.pages) for other in running)
        idle_and_found = sum(self.allocator.references(page) == 0 for page in found)
        shortage = wanted - (self.allocator.num_free + self.allocator.num_idle - idle_and_found)
        lacks_state = self._lacks_state(sequence) and self.states.num_available == 0
        if shortage <= 0 and not lacks_state:
            return []
        movable = [other for other in victims if is_forced or self._was_served(other)]
        chosen = self._choose(movable, shortage, lacks_state, lambda other: is_forced or other.level > sequence.level)
        has_state = not lacks_state or any(other.state_slot is not None for other in chosen)
        if has_state and sum(self._reclaimable(other) for other in chosen) >= shortage:
            return chosen
        # Where it must go on and nobody else does, all give way, also those whose pages count for nobody: shared ones.
        return list(victims) if is_forced and not running else None

    def bring(self, sequence: Sequence) -> None:
        """Pages to go on from: what the cache knows of a new one, what the host holds of a swapped one."""
        if sequence.host_pages:
            self._swap_in(sequence)
        elif not sequence.pages:
            self._start(sequence)

    def victim_for_growth(self, paused: Iterable[Sequence], running: Items[Sequence]) -> Sequence:
        """Who loses its pages for one that runs: the paused first, then the deepest and youngest, never the oldest."""
        resting = min((other for other in paused if self._reclaimable(other)), key=self._order, default=None)
        if resting is not None:
            return resting
        oldest = min(running, key=lambda other: other.arrival_index)
        others = [other for other in running if other is not oldest]
        assert others, "the pool holds a whole context, so the only one that runs can always grow"
        return max(others, key=lambda other: (other.level, other.arrival_index))

    def evict(self, sequence: Sequence) -> None:
        """To host memory where that has room, else its numbers are lost and computed again."""
        count = self._settings.pages_for(sequence.computed_tokens)
        needed = self._host_need(sequence)
        if 0 < needed <= self._settings.host_pages - self.host_pages_used:
            self._moves.append(Move(sequence, "out", tuple(sequence.pages[:count]), sequence.state_slot))
            sequence.host_pages = needed
            self.host_pages_used += needed
            self.num_swaps += 1
            sequence.state = "paused"
        else:
            self.num_recomputes += 1
            sequence.computed_tokens = 0
            sequence.state = "waiting"
        self._release_pages(sequence)
        sequence.num_evictions += 1
        sequence.served_since_eviction = 0

    def lose(self, sequence: Sequence) -> None:
        """The host could not take it: what was computed is lost."""
        self._leave_host(sequence)
        self.num_swaps -= 1
        self.num_recomputes += 1
        sequence.computed_tokens = 0
        sequence.state = "waiting"

    def leave(self, sequence: Sequence) -> None:
        """It has ended: nothing of it is held any more, but by the cache."""
        self._leave_host(sequence)
        self._release_pages(sequence)

    def register_full_pages(self, sequence: Sequence) -> None:
        """Let others find the pages that became full."""
        num_full = sequence.computed_tokens // self._settings.page_size
        if sequence.chain is None or num_full == sequence.registered_pages:
            return
        digests = sequence.chain.digests(sequence.token_ids, num_full)
        for index in range(sequence.registered_pages, num_full):
            self.cache.register(digests[index], sequence.pages[index])
        sequence.registered_pages = num_full
        if self._settings.keeps_states and num_full * self._settings.page_size == sequence.computed_tokens:
            self._checkpoint(sequence, digests[-1], num_full)

    def check_integrity(self, sequences: Items[Sequence]) -> None:
        """Assert that no page is lost or doubled, and that every page in use has an owner."""
        self.allocator.check_integrity()
        self.cache.check_integrity()
        self.states.check_integrity()
        live = [sequence.state_slot for sequence in sequences if sequence.state_slot is not None]
        assert len(set(live)) == len(live) == self.states.num_live
        references = [0] * self._settings.num_pages
        for sequence in sequences:
            assert len(set(sequence.pages)) == len(sequence.pages)
            held = sequence.host_pages or len(sequence.pages)
            assert self._settings.pages_for(sequence.computed_tokens) <= held
            assert not (sequence.host_pages and sequence.is_resident)
            has_state = sequence.state_slot is not None
            assert has_state == (self._settings.keeps_states and (has_state or bool(sequence.pages)))
            assert sequence.state != "waiting" or not (held or sequence.computed_tokens)
            for page in sequence.pages:
                references[page] += 1
        assert references == [self.allocator.references(page) for page in range(self._settings.num_pages)]
        assert sum(sequence.host_pages for sequence in sequences) == self.host_pages_used <= self._settings.host_pages

    def _known_pages(self, sequence: Sequence) -> list[int]:
        """Cached pages that it can start from; at least one token is always left to compute."""
        if sequence.chain is None or sequence.collects_prompt_logprobs:
            return []
        num_pages = (len(sequence.token_ids) - 1) // self._settings.page_size
        return self.cache.find(sequence.chain.digests(sequence.token_ids, num_pages))

    def _pages_soon(self, sequence: Sequence) -> int:
        growth = min(sequence.remaining_tokens, self._settings.headroom_tokens)
        return self._settings.pages_for(len(sequence.token_ids) + growth)

    def _was_served(self, sequence: Sequence) -> bool:
        """Whether it got its quantum since it was evicted last: else moving it again would be all that happens."""
        quantum = self._settings.schedule.quantum_tokens
        return sequence.num_evictions == 0 or sequence.served_since_eviction >= (1 if quantum is None else quantum)

    def _order(self, sequence: Sequence) -> tuple[bool, int, int, int]:
        """The first victim: not moved too often, deepest, most pages, youngest."""
        too_often = sequence.num_evictions >= MANY_EVICTIONS
        return too_often, -sequence.level, -self._reclaimable(sequence), -sequence.arrival_index

    def _choose(
        self, victims: Items[Sequence], shortage: int, lacks_state: bool, may_lose: Callable[[Sequence], bool]
    ) -> list[Sequence]:
        chosen: list[Sequence] = []
        host_room = self._settings.host_pages - self.host_pages_used
        for victim in sorted(victims, key=self._order):
            gain, count = self._reclaimable(victim), self._host_need(victim)
            helps = (shortage > 0 and gain > 0) or (lacks_state and victim.state_slot is not None)
            if helps and (count <= host_room or may_lose(victim)):
                chosen.append(victim)
                shortage -= gain
                lacks_state = lacks_state and victim.state_slot is None
                host_room -= count if count <= host_room else 0
        return chosen

    def _host_need(self, sequence: Sequence) -> int:
        """Pages of host memory that it would take; 0 where nothing of it is computed."""
        count = self._settings.pages_for(sequence.computed_tokens)
        return count + self._settings.state_pages if count and self._settings.keeps_states else count

    def _lacks_state(self, sequence: Sequence) -> bool:
        return self._settings.keeps_states and sequence.state_slot is None

    def _checkpoint(self, sequence: Sequence, digest: bytes, num_full: int) -> None:
        """Copy its state, which stands at the end of its last full page, to where that page's finders look for it."""
        is_prompt = sequence.computed_tokens < len(sequence.token_ids)
        page = self.cache.page_of(digest)
        if page is None or sequence.state_slot is None or not (is_prompt or num_full % CHECKPOINT_PAGES == 0):
            return
        target = self.states.keep(page)
        if target is not None:
            self._moves.append(StateCopy(sequence.state_slot, target))
        if not is_prompt and target is not None:
            if sequence.last_checkpoint is not None and sequence.last_checkpoint != page:
                self.states.forget(sequence.last_checkpoint)
            sequence.last_checkpoint = page

    def _reclaimable(self, sequence: Sequence) -> int:
        """Pages that nobody else uses."""
        return sum(self.allocator.references(page) == 1 for page in sequence.pages)

    def _start(self, sequence: Sequence) -> None:
        found = self._known_pages(sequence)
        for page in found:
            self.allocator.acquire(page)
        if self._settings.keeps_states:
            self._start_state(sequence, found)
        sequence.pages = list(found)
        sequence.registered_pages = len(found)
        sequence.computed_tokens = len(found) * self._settings.page_size
        if sequence.progress.cached_tokens is None:
            sequence.progress.cached_tokens = sequence.computed_tokens

    def _swap_in(self, sequence: Sequence) -> None:
        has_room = self.lease(sequence, sequence.computed_tokens)
        assert has_room, "room was made before it was called back"
        if self._lacks_state(sequence):
            sequence.state_slot = self.states.take()
        self._moves.append(Move(sequence, "in", tuple(sequence.pages), sequence.state_slot))
        self._leave_host(sequence)

    def _start_state(self, sequence: Sequence, found: Items[int]) -> None:
        """A slot, and in it the checkpoint at the end of the pages found; a start from nothing finds zeros by itself.

        The last page's checkpoint was used just now, so the slot that is taken is another one, or that very one where
        there is no other: then it holds what is wanted already."""
        source = self.states.use(found[-1]) if found else None
        if sequence.state_slot is None:
            sequence.state_slot = self.states.take()
        if source is not None and source != sequence.state_slot:
            self._moves.append(StateCopy(source, sequence.state_slot))

    def _leave_host(self, sequence: Sequence) -> None:
        self.host_pages_used -= sequence.host_pages
        sequence.host_pages = 0

    def _release_pages(self, sequence: Sequence) -> None:
        """The end first, so that eviction shortens a cached beginning from its end."""
        for page in reversed(sequence.pages):
            self.allocator.release(page)
        sequence.pages = []
        sequence.registered_pages = 0
        sequence.last_checkpoint = None
        if sequence.state_slot is not None:
            self.states.release(sequence.state_slot)
            sequence.state_slot = None
