"""Which experts are in which slots: least recently used over all layers, in whole numbers.

Owns the slots' occupants, their order from cold to warm, and who may not be displaced. In: numbers of experts as they
are wanted. Out: slots. It knows no bytes, no threads and no layers. Invariants: an expert is in one slot at most and a
slot holds one expert at most; who is held keeps its slot; `take` fails only where everybody is held.
"""

from collections import OrderedDict


class Residency:
    """`num_slots` of one expert each, for the experts of all layers."""

    def __init__(self, num_slots: int) -> None:
        self._slot_of: OrderedDict[int, int] = OrderedDict()
        """Expert -> slot, the coldest first."""
        self._free = list(range(num_slots - 1, -1, -1))
        self._held: set[int] = set()

    def __contains__(self, expert: int) -> bool:
        return expert in self._slot_of

    @property
    def num_resident(self) -> int:
        return len(self._slot_of)

    def slot_of(self, expert: int) -> int:
        """Raises KeyError for an expert that is not there."""
        return self._slot_of[expert]

    def hold(self, expert: int) -> None:
        """Nobody displaces it until it is let go."""
        assert expert in self._slot_of
        self._held.add(expert)

    def take(self, expert: int) -> int | None:
        """A slot for an expert that is not there, which is held from now on: a free one, or that of the coldest which
        is not held. None where all are held."""
        assert expert not in self._slot_of
        if self._free:
            slot = self._free.pop()
        else:
            victim = next((other for other in self._slot_of if other not in self._held), None)
            if victim is None:
                return None
            slot = self._slot_of.pop(victim)
        self._slot_of[expert] = slot
        self._held.add(expert)
        return slot

    def let_go(self, expert: int, *, warm: bool | None = None) -> None:
        """It may be displaced from now on: last (warm), first (not warm), or in its turn as before (None)."""
        self._held.discard(expert)
        if warm is not None:
            self._slot_of.move_to_end(expert, last=warm)

    def drop(self, expert: int) -> None:
        """Its slot is free: what was to be brought there never came."""
        self._held.discard(expert)
        self._free.append(self._slot_of.pop(expert))
