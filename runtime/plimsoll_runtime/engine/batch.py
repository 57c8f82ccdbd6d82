"""What one step computes: for each sequence a chunk of tokens, where they stand, and which rows want logits.

Owns the plain data between scheduler and runner. It knows no tensors. Invariant: a sequence has at most one chunk in a
batch, and the pages of the chunk are in its table before the batch is run.
"""

from dataclasses import dataclass
from typing import Literal

from plimsoll_runtime.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """`num_tokens` tokens of `sequence` from position `first_position`; the last `num_logit_rows` rows want logits."""

    sequence: Sequence
    first_position: int
    num_tokens: int
    num_logit_rows: int

    @property
    def end_position(self) -> int:
        """The position after the last token of the chunk: the tokens that attention reads."""
        return self.first_position + self.num_tokens

    @property
    def samples(self) -> bool:
        """Whether the chunk reaches the last known token, so that the next one is sampled."""
        return self.end_position == len(self.sequence.token_ids)

    @property
    def token_ids(self) -> list[int]:
        """The ids to compute."""
        return self.sequence.token_ids[self.first_position : self.end_position]


@dataclass(frozen=True, slots=True)
class Move:
    """Keys and values of `sequence` leave `pages` for host memory, or come back into them, and with them its state."""

    sequence: Sequence
    direction: Literal["out", "in"]
    pages: tuple[int, ...]
    state_slot: int | None = None


@dataclass(frozen=True, slots=True)
class StateCopy:
    """What a state slot holds is copied to another: a checkpoint is made, or started from."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Batch:
    """The chunks of one step, decoding sequences first. `moves` are made before it, in order: the pages and slots that
    one move leaves may be written by the next, or by the step."""

    chunks: tuple[Chunk, ...]
    moves: tuple[Move | StateCopy, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Rows of the whole batch."""
        return sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def num_logit_rows(self) -> int:
        """Rows that want logits."""
        return sum(chunk.num_logit_rows for chunk in self.chunks)


def make_chunk(sequence: Sequence, num_tokens: int) -> Chunk:
    """The next `num_tokens` pending tokens.

    Row t scores token t + 1, so a prompt's own rows are wanted for its logprobs as far as they are not known yet;
    otherwise only the row that samples.
    """
    first, end = sequence.computed_tokens, sequence.computed_tokens + num_tokens
    samples = end == len(sequence.token_ids)
    num_logit_rows = 1 if samples else 0
    if sequence.collects_prompt_logprobs:
        assert sequence.progress.logprobs is not None
        first_unscored_row = max(first, len(sequence.progress.logprobs) - 1)
        num_logit_rows = max(num_logit_rows, end - first_unscored_row)
    return Chunk(sequence, first, num_tokens, num_logit_rows)
