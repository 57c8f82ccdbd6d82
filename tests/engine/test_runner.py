"""From a batch to the tensors of a step, and back to the rows that want logits."""

from collections.abc import Sequence

import torch

from doubles.admitted_requests import admitted
from doubles.engine_runs import TINY
from plimsoll_runtime.engine.batch import Batch, make_chunk
from plimsoll_runtime.engine.kv_cache import allocate_kv_cache
from plimsoll_runtime.engine.runner import ModelRunner
from plimsoll_runtime.engine.sequence import Sequence as Stream
from plimsoll_runtime.engine.sequence import split_request
from plimsoll_runtime.engine.settings import EngineSettings
from plimsoll_runtime.models.attention import AttentionBatch, SequenceSpan
from plimsoll_runtime.models.decoder import AnyCache


class Recorder:
    """Remembers what it was called with; the state of row t is t."""

    def forward(
        self,
        token_ids_T: torch.Tensor,
        positions_T: torch.Tensor,
        attention: AttentionBatch,
        cache: Sequence[AnyCache],
    ) -> torch.Tensor:
        self.token_ids, self.positions, self.attention = token_ids_T.tolist(), positions_T.tolist(), attention
        return torch.arange(len(token_ids_T))[:, None]

    def logits(self, hidden_NE: torch.Tensor) -> torch.Tensor:
        return hidden_NE.float()


def stream(prompt: list[int], computed_tokens: int, pages: list[int], prompt_logprobs: int | None = None) -> Stream:
    [made] = split_request(admitted("r", prompt, prompt_logprobs=prompt_logprobs), EngineSettings(**TINY))
    made.computed_tokens, made.pages, made.progress.leader = computed_tokens, pages, made
    return made


def test_a_mixed_step() -> None:
    decoding = stream([10, 11, 12, 13, 14], 4, [5, 6, 1])
    middle = stream([20, 21, 22, 23, 24], 0, [3, 9])
    scored = stream([30, 31, 32], 0, [7, 0], prompt_logprobs=0)
    batch = Batch((make_chunk(decoding, 1), make_chunk(middle, 3), make_chunk(scored, 3)))
    recorder = Recorder()
    runner = ModelRunner(recorder, [], page_size=2, device="cpu")
    states = runner.run(batch)
    assert recorder.token_ids == [14, 20, 21, 22, 30, 31, 32]
    assert recorder.positions == [4, 0, 1, 2, 0, 1, 2]
    assert recorder.attention.cache_rows_T.tolist() == [2, 6, 7, 18, 14, 15, 0]
    assert list(recorder.attention.spans) == [
        SequenceSpan(0, 1, 4, [5, 6, 1]),
        SequenceSpan(1, 3, 0, [3, 9]),
        SequenceSpan(4, 3, 0, [7, 0]),
    ]
    # The decoding row, nothing of the prompt's middle, and every row of the prompt that is scored.
    assert states.flatten().tolist() == [0, 4, 5, 6]
    assert runner.logits(states).dtype == torch.float32


def test_the_cache_has_a_row_for_every_token_of_every_page() -> None:
    layers = allocate_kv_cache(
        num_layers=2, num_kv_heads=3, head_elements=4, num_pages=5, page_size=2, dtype=torch.bfloat16, device="cpu"
    )
    assert [(tuple(t.shape), t.dtype) for layer in layers for t in (layer.keys, layer.values)] == [
        ((10, 3, 4), torch.bfloat16)
    ] * 4
