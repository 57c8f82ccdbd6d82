"""Where the keys and values of a sequence are: on pages of the device, in host memory, or nowhere.

Owns page tables, the host's share of pages, and who loses pages when they are short. In: sequences that start, grow,
come back or leave. Out: page tables, and the `Move`s that the engine makes before the step. It knows no turns, no
bytes and no tensors; it counts the host's memory in pages.

    nothing --start--> on the device <--swap in-- in host memory
       ^                    |   \\----swap out-------->|
       \\-----recompute------/                          \\--(host copy lost)--> nothing

A sequence that is swapped takes copies of all its pages along, shared ones too, and drops its references: what it
shared stays with the others, or with the prefix cache, and nothing on the device waits for its return. It comes back
onto pages of its own, with the numbers that it left with, so its next token is the one it would have had.

Invariants: pages are leased as tokens need them; whoever is paused leases none. Idle cached pages go before anybody
loses any. The oldest that runs loses nothing, and the pool holds a whole context: so it can always grow, ends, and the
next one is the oldest. Recomputing is the last resort, where the host holds no more: it costs time, and never a token.
Only three can cause it: a shallower level that wants the slot, one that is aged, and one that runs and must grow. A
turn of equals never does: whoever does not fit waits until one that runs ends, or until it is aged.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items

from plimsoll_runtime.engine.batch import Move
from plimsoll_runtime.engine.page_allocator import PageAllocator
from plimsoll_runtime.engine.prefix_cache import PrefixCache
from plimsoll_runtime.engine.sequence import Sequence
from plimsoll_runtime.engine.settings import EngineSettings

MANY_EVICTIONS = 3
"""Who was moved so often is moved only when nobody else can be."""


class Residency:
    """Not safe across threads: the scheduler owns it."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self.allocator = PageAllocator(settings.num_pages)
        self.cache = PrefixCache(self.allocator)
        self.host_pages_used = 0
        self.num_swaps = 0
        self.num_recomputes = 0
        self._moves: list[Move] = []

    def take_moves(self) -> tuple[Move, ...]:
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
        if shortage <= 0:
            return []
        movable = [other for other in victims if is_forced or self._was_served(other)]
        chosen = self._choose(movable, shortage, lambda other: is_forced or other.level > sequence.level)
        if sum(self._reclaimable(other) for other in chosen) >= shortage:
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
        if 0 < count <= self._settings.host_pages - self.host_pages_used:
            self._moves.append(Move(sequence, "out", tuple(sequence.pages[:count])))
            sequence.host_pages = count
            self.host_pages_used += count
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

    def check_integrity(self, sequences: Items[Sequence]) -> None:
        """Assert that no page is lost or doubled, and that every page in use has an owner."""
        self.allocator.check_integrity()
        self.cache.check_integrity()
        references = [0] * self._settings.num_pages
        for sequence in sequences:
            assert len(set(sequence.pages)) == len(sequence.pages)
            held = sequence.host_pages or len(sequence.pages)
            assert self._settings.pages_for(sequence.computed_tokens) <= held
            assert not (sequence.host_pages and sequence.pages)
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

    def _choose(self, victims: Items[Sequence], shortage: int, may_lose: Callable[[Sequence], bool]) -> list[Sequence]:
        chosen: list[Sequence] = []
        host_room = self._settings.host_pages - self.host_pages_used
        for victim in sorted(victims, key=self._order):
            gain, count = self._reclaimable(victim), self._settings.pages_for(victim.computed_tokens)
            if shortage > 0 and gain and (count <= host_room or may_lose(victim)):
                chosen.append(victim)
                shortage -= gain
                host_room -= count if count <= host_room else 0
        return chosen

    def _reclaimable(self, sequence: Sequence) -> int:
        """Pages that nobody else uses."""
        return sum(self.allocator.references(page) == 1 for page in sequence.pages)

    def _start(self, sequence: Sequence) -> None:
        found = self._known_pages(sequence)
        for page in found:
            self.allocator.acquire(page)
        sequence.pages = list(found)
        sequence.registered_pages = len(found)
        sequence.computed_tokens = len(found) * self._settings.page_size
        if sequence.progress.cached_tokens is None:
            sequence.progress.cached_tokens = sequence.computed_tokens

    def _swap_in(self, sequence: Sequence) -> None:
        has_room = self.lease(sequence, sequence.computed_tokens)
        assert has_room, "room was made before it was called back"
        self._moves.append(Move(sequence, "in", tuple(sequence.pages)))
        self._leave_host(sequence)

    def _leave_host(self, sequence: Sequence) -> None:
        self.host_pages_used -= sequence.host_pages
        sequence.host_pages = 0

    def _release_pages(self, sequence: Sequence) -> None:
        """The end first, so that eviction shortens a cached beginning from its end."""
        for page in reversed(sequence.pages):
            self.allocator.release(page)
        sequence.pages = []
        sequence.registered_pages = 0
