"""A decoder that remembers: the next token is a hash of all tokens before it, read back through the page table.

Where attention would blur a wrong or foreign page into slightly different numbers, this one writes another token or
fails outright. It computes no attention, so it is cheap enough for random histories. With states in its cache, each
must hold the hash of all tokens before the step's, and how many those are: one that was not carried along fails.
"""

from collections.abc import Sequence

import torch

from plimsoll_runtime.models.attention import AttentionBatch, LayerCache, SequenceSpan
from plimsoll_runtime.models.decoder import AnyCache
from plimsoll_runtime.models.gated_delta import StateCache

CERTAIN = 50.0


def _mix(token_ids: Sequence[int]) -> int:
    """Every token and every place counts. Exact in float32."""
    mixed = 7
    for token_id in token_ids:
        mixed = (mixed * 31 + token_id + 1) % 1_000_003
    return mixed


def next_token(token_ids: Sequence[int], vocab_size: int) -> int:
    """What follows `token_ids`."""
    return _mix(token_ids) % vocab_size


def continuation(prompt: Sequence[int], length: int, vocab_size: int) -> list[int]:
    """The greedy answer, without an engine."""
    token_ids = list(prompt)
    for _ in range(length):
        token_ids.append(next_token(token_ids, vocab_size))
    return token_ids[len(prompt) :]


class PagedMemory:
    """Keys hold token ids, values hold positions: caches of one layer, shape [rows, 1, 1], and maybe of one with
    states, [slots, 1, 1, 1]."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def forward(
        self,
        token_ids_T: torch.Tensor,
        positions_T: torch.Tensor,
        attention: AttentionBatch,
        cache: Sequence[AnyCache],
    ) -> torch.Tensor:
        """States [T, 1]: the id that follows each row."""
        layer, *states = cache
        assert isinstance(layer, LayerCache)
        layer.keys[attention.cache_rows_T, 0, 0] = token_ids_T.to(layer.keys.dtype)
        layer.values[attention.cache_rows_T, 0, 0] = positions_T.to(layer.values.dtype)
        following: list[int] = []
        for span in attention.spans:
            assert span.start_row == len(following)
            seen = self._read(span, attention.page_size, layer)
            for state in states:
                assert isinstance(state, StateCache)
                _carry(span, seen, state)
            following += [
                next_token(seen[: span.context_tokens + i + 1], self._vocab_size) for i in range(span.num_tokens)
            ]
        return torch.tensor(following)[:, None]

    def logits(self, hidden_NE: torch.Tensor) -> torch.Tensor:
        """CERTAIN for the id that follows, 0 for all others."""
        return torch.zeros(len(hidden_NE), self._vocab_size).scatter_(1, hidden_NE, CERTAIN)

    def _read(self, span: SequenceSpan, page_size: int, layer: LayerCache) -> list[int]:
        positions = range(span.context_tokens + span.num_tokens)
        rows = [span.page_table[p // page_size] * page_size + p % page_size for p in positions]
        assert layer.values[rows, 0, 0].tolist() == list(positions), "a page holds other positions than its place says"
        return [int(token_id) for token_id in layer.keys[rows, 0, 0].tolist()]


def _carry(span: SequenceSpan, seen: list[int], cache: StateCache) -> None:
    """Check the state that the sequence comes with, unless it starts, and leave the one that it goes on with."""
    recurrent, convolution = cache.recurrent[span.state_slot], cache.convolution[span.state_slot]
    if span.context_tokens:
        found = (int(recurrent.item()), int(convolution.item()))
        assert found == (_mix(seen[: span.context_tokens]), span.context_tokens), "the state is another sequence's"
    recurrent.fill_(_mix(seen))
    convolution.fill_(len(seen))
