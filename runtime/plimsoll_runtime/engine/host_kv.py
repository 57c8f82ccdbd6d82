"""Keys, values and states of paused sequences in host memory: one copy for each sequence.

In: the device's cache, and what leaves or comes back. Out: bytes moved. It knows no schedule and no budget: how many
pages it may hold is counted by residency.py. Shapes: L layers with attention, R rows (pages x page_size), K kv heads,
D head_dim.

Ownership: a copy, `[L, 2, R, K, D]` and the rows of one slot of every state, lives from `take` to `give_back` or
`drop`; `copy_state` stays on the device. It is memory of this process and never a file. Scattered pages are gathered
layer by layer, so that what crosses the bus is contiguous. On a CUDA device the host's side is pinned and nothing waits
for the copies: they stand in the device's own stream, before whatever writes the pages next. (That path follows the
documentation of torch and has not been run; the device computes nothing while it copies.)
"""

from collections.abc import Hashable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol

import torch

from plimsoll_runtime.models.attention import LayerCache
from plimsoll_runtime.models.decoder import AnyCache
from plimsoll_runtime.models.gated_delta import StateCache


class HostKVFullError(Exception):
    """There is no memory for another copy, on the host or for gathering it on the device; nothing was taken."""


class KVStore(Protocol):
    """What the engine asks of whoever moves keys, values and states."""

    bytes_out: int
    bytes_in: int

    def take(self, owner: Hashable, pages: Items[int], state_slot: int | None) -> None:
        """Copy the pages and the state. Raises HostKVFullError."""

    def give_back(self, owner: Hashable, pages: Items[int], state_slot: int | None) -> None:
        """Write what was taken of this owner to the first of these pages and to this slot, and forget it."""

    def copy_state(self, source: int, target: int) -> None:
        """Let one state slot hold what another one holds."""

    def drop(self, owner: Hashable) -> None:
        """Forget the copy of an owner; an unknown one is fine."""


class NoKV:
    """For runners without keys and values: there is nothing to move, and moving it costs nothing."""

    def __init__(self) -> None:
        self.bytes_out = 0
        self.bytes_in = 0

    def take(self, owner: Hashable, pages: Items[int], state_slot: int | None) -> None:
        """Nothing."""

    def give_back(self, owner: Hashable, pages: Items[int], state_slot: int | None) -> None:
        """Nothing."""

    def copy_state(self, source: int, target: int) -> None:
        """Nothing."""

    def drop(self, owner: Hashable) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class _Copy:
    keys_and_values: torch.Tensor
    states: tuple[torch.Tensor, ...]

    @property
    def num_bytes(self) -> int:
        return self.keys_and_values.nbytes + sum(state.nbytes for state in self.states)


class HostKV:
    """Copies of pages and states of one cache."""

    def __init__(self, cache: Items[AnyCache], page_size: int) -> None:
        self._cache = [layer for layer in cache if isinstance(layer, LayerCache)]
        layers = [layer for layer in cache if isinstance(layer, StateCache)]
        self._states = [state for layer in layers for state in (layer.recurrent, layer.convolution)]
        self._page_size = page_size
        self._device = self._cache[0].keys.device
        self._copies: dict[Hashable, _Copy] = {}
        self.bytes_out = 0
        self.bytes_in = 0

    @torch.inference_mode()
    def take(self, owner: Hashable, pages: Items[int], state_slot: int | None) -> None:
        """Copy the pages and the state. Raises HostKVFullError."""
        try:
            copy = _Copy(self._gathered(pages), self._state_rows(state_slot))
        except (RuntimeError, MemoryError) as error:
            raise HostKVFullError(str(error)) from error
        self._copies[owner] = copy
        self.bytes_out += copy.num_bytes

    @torch.inference_mode()
    def give_back(self, owner: Hashable, pages: Items[int], state_slot: int | None) -> None:
        """Write what was taken of this owner to the first of these pages and to this slot, and forget it."""
        copy = self._copies.pop(owner)
        rows_R = self._rows(pages)[: copy.keys_and_values.shape[2]]
        for keys_and_values, cache in zip(copy.keys_and_values, self._cache, strict=True):
            for half, rows in zip(keys_and_values, (cache.keys, cache.values), strict=True):
                rows.index_copy_(0, rows_R, half.to(self._device, non_blocking=True))
        if state_slot is not None:
            for state, kept in zip(self._states, copy.states, strict=True):
                state[state_slot].copy_(kept, non_blocking=True)
        self.bytes_in += copy.num_bytes

    @torch.inference_mode()
    def copy_state(self, source: int, target: int) -> None:
        """Let one state slot hold what another one holds."""
        for state in self._states:
            state[target].copy_(state[source])

    def drop(self, owner: Hashable) -> None:
        """Forget the copy of an owner; an unknown one is fine."""
        self._copies.pop(owner, None)

    def _rows(self, pages: Items[int]) -> torch.Tensor:
        """Cache rows of all tokens of the pages, int64 [R]."""
        first_rows = torch.tensor(pages, dtype=torch.int64, device=self._device)[:, None] * self._page_size
        return (first_rows + torch.arange(self._page_size, device=self._device)).flatten()

    def _state_rows(self, state_slot: int | None) -> tuple[torch.Tensor, ...]:
        """Copies of one slot in all layers."""
        if state_slot is None:
            return ()
        is_pinned = self._device.type == "cuda"
        copies = [torch.empty(state.shape[1:], dtype=state.dtype, pin_memory=is_pinned) for state in self._states]
        for copy, state in zip(copies, self._states, strict=True):
            copy.copy_(state[state_slot], non_blocking=is_pinned)
        return tuple(copies)

    def _gathered(self, pages: Items[int]) -> torch.Tensor:
        """A copy of the pages. The device too may be short: it gathers the rows of a layer before they leave."""
        rows_R = self._rows(pages)
        keys = self._cache[0].keys
        shape = (len(self._cache), 2, len(rows_R), *keys.shape[1:])
        copy = torch.empty(shape, dtype=keys.dtype, pin_memory=self._device.type == "cuda")
        for keys_and_values, cache in zip(copy, self._cache, strict=True):
            for half, rows in zip(keys_and_values, (cache.keys, cache.values), strict=True):
                if self._device.type == "cuda":
                    half.copy_(rows.index_select(0, rows_R), non_blocking=True)
                else:
                    torch.index_select(rows, 0, rows_R, out=half)
        return copy
