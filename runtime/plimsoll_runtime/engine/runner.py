"""From a batch to logits: the border between the engine and whatever computes.

Owns the `Runner` protocol and `ModelRunner`, which builds the attention tensors of a step and calls the decoder. In: a
`Batch` whose pages are leased. Out: hidden states and logits. It knows no sampling and no events. Shapes: T rows of the
step, N rows that want logits, E hidden size, V vocabulary. Invariant: logits are computed only for rows that want them.
"""

from collections.abc import Sequence as Items
from typing import Protocol

import numpy as np
import torch

from plimsoll_runtime.engine.batch import Batch, Chunk
from plimsoll_runtime.models.attention import AttentionBatch, SequenceSpan
from plimsoll_runtime.models.decoder import AnyCache


class RequestFailure(Exception):
    """One request cannot be computed, and the step was not: that request fails, the others run again."""

    def __init__(self, request_id: str, message: str) -> None:
        super().__init__(message)
        self.request_id = request_id
        self.message = message


class Runner(Protocol):
    """What the engine asks of a model. Raises RequestFailure for one request, before any state is moved on, since the
    others of the batch run again; anything else ends the engine."""

    def run(self, batch: Batch) -> torch.Tensor:
        """Compute the batch, write its keys and values, and return states [N, E] of the rows that want logits, in
        order of chunks and positions."""

    def logits(self, states_NE: torch.Tensor) -> torch.Tensor:
        """Float32 logits [N, V] of some of those states."""


class DecoderModel(Protocol):
    """The part of models.decoder.Decoder that the engine calls."""

    def forward(
        self,
        token_ids_T: torch.Tensor,
        positions_T: torch.Tensor,
        attention: AttentionBatch,
        cache: Items[AnyCache],
    ) -> torch.Tensor:
        """Hidden states [T, E] after the final norm."""

    def logits(self, hidden_NE: torch.Tensor) -> torch.Tensor:
        """Float32 logits [N, V]."""


class ModelRunner:
    """Runs a decoder over a paged cache on one device."""

    def __init__(
        self, decoder: DecoderModel, cache: Items[AnyCache], page_size: int, device: torch.device | str
    ) -> None:
        self._decoder = decoder
        self._cache = cache
        self._page_size = page_size
        self._device = torch.device(device)

    @torch.inference_mode()
    def run(self, batch: Batch) -> torch.Tensor:
        """States [N, E] of the rows that want logits."""
        token_ids_T = self._tensor(np.concatenate([np.array(chunk.token_ids) for chunk in batch.chunks]))
        positions_T = self._tensor(np.concatenate([_positions(chunk) for chunk in batch.chunks]))
        hidden_TE = self._decoder.forward(token_ids_T, positions_T, self._attention(batch), self._cache)
        return hidden_TE[self._tensor(_logit_rows(batch))]

    @torch.inference_mode()
    def logits(self, states_NE: torch.Tensor) -> torch.Tensor:
        """Float32 logits [N, V]."""
        return self._decoder.logits(states_NE)

    def _attention(self, batch: Batch) -> AttentionBatch:
        spans: list[SequenceSpan] = []
        start_row = 0
        for chunk in batch.chunks:
            slot = 0 if chunk.sequence.state_slot is None else chunk.sequence.state_slot
            spans.append(SequenceSpan(start_row, chunk.num_tokens, chunk.first_position, chunk.sequence.pages, slot))
            start_row += chunk.num_tokens
        cache_rows = np.concatenate([_cache_rows(chunk, self._page_size) for chunk in batch.chunks])
        return AttentionBatch(spans, self._page_size, self._tensor(cache_rows))

    def _tensor(self, numbers: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> torch.Tensor:
        return torch.from_numpy(numbers).to(self._device)


def _positions(chunk: Chunk) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.arange(chunk.first_position, chunk.end_position, dtype=np.int64)


def _cache_rows(chunk: Chunk, page_size: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Where each token's keys and values go: its page's first row, and its place in the page."""
    positions = _positions(chunk)
    pages = np.array(chunk.sequence.pages, dtype=np.int64)
    rows: np.ndarray[tuple[int], np.dtype[np.int64]] = pages[positions // page_size] * page_size + positions % page_size
    return rows


def _logit_rows(batch: Batch) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    rows: list[int] = []
    end_row = 0
    for chunk in batch.chunks:
        end_row += chunk.num_tokens
        rows += range(end_row - chunk.num_logit_rows, end_row)
    return np.array(rows, dtype=np.int64)
