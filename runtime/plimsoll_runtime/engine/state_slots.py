"""Who holds which state slot, for models with layers that keep a state of fixed size for each sequence.

Owns slot numbers, never what they hold. In: sequences that start and leave, pages of the prefix cache that become a
place to start from. Out: slot numbers. It knows no sequences and no tensors. A state cannot be cut like keys and
values: a known beginning is of use only up to a page border at which somebody's state was copied, a checkpoint.

A slot is in exactly one state (check_integrity proves it):

    free --take--> live (one sequence's own) --release--> free
    free --keep--> checkpoint (of one cached page) --forget, or evicted by take or keep--> free

Live slots come first: whoever needs one takes the checkpoint that was used longest ago, so checkpoints cost nothing
that a sequence could use, and their number is bounded by the slots that the memory plan counted.
"""

from collections import OrderedDict


class StateSlots:
    """Slots 0..num_slots-1; none for models that keep no states. Not safe across threads: residency.py owns it."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(reversed(range(num_slots)))
        self._live: set[int] = set()
        self._checkpoints: OrderedDict[int, int] = OrderedDict()

    @property
    def num_live(self) -> int:
        return len(self._live)

    @property
    def num_checkpoints(self) -> int:
        return len(self._checkpoints)

    @property
    def num_available(self) -> int:
        """What a sequence could take."""
        return len(self._free) + len(self._checkpoints)

    def take(self) -> int:
        """A slot for a sequence. The caller has made sure that one is available."""
        slot = self._find_room()
        assert slot is not None, f"all {self.num_slots} state slots are live"
        self._live.add(slot)
        return slot

    def release(self, slot: int) -> None:
        """The sequence has left."""
        self._live.remove(slot)
        self._free.append(slot)

    def keep(self, page: int) -> int | None:
        """A slot for the checkpoint at the end of `page`; None where it has one, or where all slots are live."""
        if page in self._checkpoints:
            self._checkpoints.move_to_end(page)
            return None
        slot = self._find_room()
        if slot is not None:
            self._checkpoints[page] = slot
        return slot

    def has_checkpoint(self, page: int) -> bool:
        return page in self._checkpoints

    def use(self, page: int) -> int:
        """The slot of the checkpoint at the end of `page`, which is now evicted last."""
        self._checkpoints.move_to_end(page)
        return self._checkpoints[page]

    def forget(self, page: int) -> None:
        """The page's content is gone, or its checkpoint not wanted any more; a page without one is fine."""
        slot = self._checkpoints.pop(page, None)
        if slot is not None:
            self._free.append(slot)

    def check_integrity(self) -> None:
        """Assert that every slot is in exactly one state."""
        assert sorted([*self._free, *self._live, *self._checkpoints.values()]) == list(range(self.num_slots))

    def _find_room(self) -> int | None:
        if self._free:
            return self._free.pop()
        return self._checkpoints.popitem(last=False)[1] if self._checkpoints else None
