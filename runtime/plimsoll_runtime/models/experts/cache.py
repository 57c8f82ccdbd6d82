"""A cache of experts in memory of a fixed size, over a pack on disk.

Owns the slots, the threads that fill them, and what was counted. In: which experts a layer needs for how many tokens.
Out: their networks, one after the other; what is there comes first, while the rest is being read. It does not know
routing. Invariants: memory is `num_slots` slots and no more, whatever a step needs; a step can always run, since
experts of one layer may follow each other through few slots; a network is handed out only over bytes that have all
come. Every miss is brought: computing it where it lies would read the same bytes.

A layer for many tokens needs nearly all of its experts, and nearly all are used once: those are brought ahead of the
computation, go through the coldest slots only, and the next layer's reads begin before it is asked for. So a long
prompt costs one pass over what is missing, and does not displace what decoding needs.
"""

import mmap
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from plimsoll_runtime.models.experts.layout import ExpertLayout
from plimsoll_runtime.models.experts.pack import ExpertPack
from plimsoll_runtime.models.experts.residency import Residency
from plimsoll_runtime.models.feed_forward import GatedNetwork

READERS = 8
"""Reads under way at a time: what fills a disk's queue with reads of a megabyte."""

STREAM_TOKENS = 16
"""From so many tokens in a step on a layer streams: of 128 experts of which a token takes 8, 16 tokens need 82."""


@dataclass(frozen=True, slots=True)
class ExpertCounts:
    """What happened since the start: uses are (step, layer, expert), `wait_seconds` is what steps waited for reads."""

    hits: int = 0
    misses: int = 0
    brought_bytes: int = 0
    wait_seconds: float = 0.0


class ExpertCache:
    """Used by one thread at a time; `counts` may be read by any."""

    def __init__(self, pack: ExpertPack, layout: ExpertLayout, num_slots: int) -> None:
        self._pack = pack
        self._layout = layout
        self.num_slots = num_slots
        self._memory = torch.frombuffer(mmap.mmap(-1, num_slots * layout.slot_bytes), dtype=torch.uint8)
        self._slots = self._memory.view(num_slots, -1)
        self._buffers = [slot.numpy().data for slot in self._slots]
        self._residency = Residency(num_slots)
        self._networks: dict[tuple[int, str], GatedNetwork] = {}
        self._kinds = [form.text for form in layout.forms]
        self._readers = ThreadPoolExecutor(READERS, "experts")
        self._reads: dict[int, Future[None]] = {}
        """Under way, or done and not yet looked at; their experts are held."""
        self.counts = ExpertCounts()

    @property
    def num_experts(self) -> int:
        """All that there are, of all layers."""
        return self._layout.count

    @property
    def num_bytes(self) -> int:
        """Memory of the slots."""
        return self._memory.numel()

    @property
    def num_resident(self) -> int:
        """Experts that are there now, or on their way."""
        return self._residency.num_resident

    def visit(self, layer: int, experts: Sequence[int], num_tokens: int) -> Iterator[tuple[int, GatedNetwork]]:
        """Each of the experts with its network, which may be used until the next one is asked for."""
        streams = num_tokens >= STREAM_TOKENS
        first = layer * self._layout.num_experts
        wanted = [first + expert for expert in experts]
        self._forget_reads_except(wanted)
        there = [number for number in wanted if number in self._residency and number not in self._reads]
        coming = [number for number in wanted if number in self._reads]
        missing = [number for number in wanted if number not in self._residency]
        self._count(hits=len(there), misses=len(coming) + len(missing))
        for number in there:
            self._residency.hold(number)
        ahead = deque(missing)
        try:
            self._read_ahead(ahead, streams)
            for number in there:
                yield number - first, self._network(number)
                self._residency.let_go(number, warm=None if streams else True)
                self._read_ahead(ahead, streams)
            for number in [*coming, *missing]:
                self._wait_for(number)
                yield number - first, self._network(number)
                self._residency.let_go(number, warm=not streams or not self._is_full)
                self._read_ahead(ahead, streams)
            if streams and layer + 1 < len(self._kinds):
                self._read_next_layer(layer + 1)
        except BaseException:
            self._drop_reads()
            raise
        finally:
            for number in wanted:
                if number in self._residency and number not in self._reads:
                    self._residency.let_go(number)

    @property
    def _is_full(self) -> bool:
        return self._residency.num_resident == self.num_slots

    def _read_ahead(self, ahead: deque[int], streams: bool) -> None:
        """Begins the next reads, as far as there are slots; streams keep to as many as are read at a time."""
        while ahead and not (streams and len(self._reads) >= READERS):
            slot = self._residency.take(ahead[0])
            if slot is None:
                return
            number = ahead.popleft()
            self._reads[number] = self._readers.submit(self._pack.read, number, self._buffers[slot])

    def _read_next_layer(self, layer: int) -> None:
        """While attention computes: as many as are read at a time, in half of the slots at the most."""
        first = layer * self._layout.num_experts
        absent = [number for number in range(first, first + self._layout.num_experts) if number not in self._residency]
        room = max(self.num_slots // 2 - len(self._reads), 0)
        self._read_ahead(deque(absent[:room]), streams=True)

    def _forget_reads_except(self, wanted: Sequence[int]) -> None:
        """What was read ahead and is not needed may be displaced first."""
        for number in self._reads.keys() - set(wanted):
            self._wait_for(number)
            self._residency.let_go(number, warm=False)

    def _drop_reads(self) -> None:
        """Slots are free again once nobody writes to them."""
        for number, read in self._reads.items():
            read.exception()
            self._residency.drop(number)
        self._reads.clear()

    def _wait_for(self, number: int) -> None:
        started = time.perf_counter()
        read = self._reads.pop(number)
        try:
            read.result()
        except BaseException:
            self._residency.drop(number)
            raise
        num_bytes = self._layout.form_of(number).num_bytes
        self._count(brought_bytes=num_bytes, wait_seconds=time.perf_counter() - started)

    def _network(self, number: int) -> GatedNetwork:
        """Over the slot, whose bytes change under it: it is made once for each form that a slot has held."""
        slot, layer = self._residency.slot_of(number), number // self._layout.num_experts
        kind = self._kinds[layer]
        network = self._networks.get((slot, kind))
        if network is None:
            network = self._networks[slot, kind] = self._layout.forms[layer].open(self._slots[slot])
        return network

    def _count(self, *, hits: int = 0, misses: int = 0, brought_bytes: int = 0, wait_seconds: float = 0.0) -> None:
        was = self.counts
        self.counts = ExpertCounts(
            was.hits + hits,
            was.misses + misses,
            was.brought_bytes + brought_bytes,
            was.wait_seconds + wait_seconds,
        )


@dataclass(frozen=True, slots=True)
class LayerExperts:
    """The experts of one layer, as a mixture asks for them."""

    cache: ExpertCache
    layer: int

    def visit(self, experts: Sequence[int], num_tokens: int) -> Iterator[tuple[int, GatedNetwork]]:
        return self.cache.visit(self.layer, experts, num_tokens)
