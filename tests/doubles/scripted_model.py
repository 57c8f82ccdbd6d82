"""A model that writes what a script says: for tests of text, protocol and scheduling, and for benchmarks of the rest.

`ScriptedRunner(script, vocab_size)` stands where `ModelRunner` stands. It reads no keys and values, so it proves
nothing about attention; it is cheap, so that a benchmark measures everything else.
"""

import threading
from collections import deque
from collections.abc import Callable

import torch

from plimsoll_runtime.engine.batch import Batch, Chunk
from plimsoll_runtime.engine.runner import RequestFailure

Script = Callable[[tuple[int, ...], int], int]
"""(prompt ids, how many tokens were written before) -> the id to write, or NOT_A_NUMBER."""

NOT_A_NUMBER = -1
"""In a script: all scores of this row are NaN."""

CERTAIN = 50.0
"""The score of the scripted id, where all others have 0: even sampled at temperature 1 it is always chosen."""


def write(token_ids: list[int]) -> Script:
    """A script that writes these ids whatever the prompt is, and then the last one for ever."""
    return lambda _prompt, position: token_ids[min(position, len(token_ids) - 1)]


class ScriptedRunner:
    """Follows a script, and misbehaves on demand.

    `before_step` is called with the number of the step (from 1) before it computes: it may raise, or block on an event.
    `refused` holds request ids whose steps raise a RequestFailure. `steps` has the last steps, each a list of chunks as
    (request id, choice, first position, tokens).
    """

    def __init__(self, script: Script, vocab_size: int, before_step: Callable[[int], None] | None = None) -> None:
        self._script = script
        self._vocab_size = vocab_size
        self.before_step = before_step
        self.refused: set[str] = set()
        self.num_steps = 0
        self.steps: deque[list[tuple[str, int, int, int]]] = deque(maxlen=10_000)

    def run(self, batch: Batch) -> torch.Tensor:
        """The ids to write, one per row that wants logits: shape [N]."""
        self.num_steps += 1
        if self.before_step is not None:
            self.before_step(self.num_steps)
        self.steps.append([_in_short(chunk) for chunk in batch.chunks])
        for chunk in batch.chunks:
            if chunk.sequence.request.request_id in self.refused:
                raise RequestFailure(chunk.sequence.request.request_id, "refused by the script")
        return torch.tensor([token_id for chunk in batch.chunks for token_id in self._rows(chunk)], dtype=torch.int64)

    def logits(self, states_N: torch.Tensor) -> torch.Tensor:
        """Scores [N, vocabulary]: CERTAIN for the scripted id, 0 for all others."""
        logits_NV = torch.zeros(len(states_N), self._vocab_size)
        logits_NV.scatter_(1, states_N.clamp(min=0)[:, None], CERTAIN)
        logits_NV[states_N == NOT_A_NUMBER] = torch.nan
        return logits_NV

    def _rows(self, chunk: Chunk) -> list[int]:
        """Row t writes token t + 1; rows inside the prompt write the prompt."""
        prompt = chunk.sequence.prompt.token_ids
        written = range(chunk.end_position - chunk.num_logit_rows + 1, chunk.end_position + 1)
        return [prompt[t] if t < len(prompt) else self._script(prompt, t - len(prompt)) for t in written]


class Gate:
    """A `before_step` that lets steps through only while it is open; `entered` is set once a step waits or passes."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()

    def __call__(self, step: int) -> None:
        self.entered.set()
        self.open.wait()


def _in_short(chunk: Chunk) -> tuple[str, int, int, int]:
    return chunk.sequence.request.request_id, chunk.sequence.choice, chunk.first_position, chunk.num_tokens
