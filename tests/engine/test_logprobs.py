"""Log probabilities: the model's own distribution, every number finite, one report per token."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from doubles.admitted_requests import admitted
from doubles.engine_runs import VOCAB_SIZE, EngineRun
from doubles.scripted_model import CERTAIN, NOT_A_NUMBER
from plimsoll_runtime.engine.batch import Batch
from plimsoll_runtime.engine.logprobs import LOWEST_LOGPROB, likeliest, token_logprobs
from plimsoll_runtime.events import Failed, PrefillDone, Token, TokenLogprobs

ELSEWHERE = -math.log(math.exp(CERTAIN) + VOCAB_SIZE - 1)
"""The logprob of every id that the script does not write."""


def test_logprobs_are_the_log_softmax_of_the_raw_scores() -> None:
    scores = torch.randn(3, 40)
    expected = torch.log_softmax(scores.double(), dim=-1)
    for row, report in enumerate(token_logprobs(scores.numpy(), [5, 6, 7], 4)):
        best = torch.topk(expected[row], 4)
        assert report.logprob == pytest.approx(float(expected[row, 5 + row]))
        assert [i for i, _ in report.top] == best.indices.tolist()
        assert [x for _, x in report.top] == pytest.approx(best.values.tolist())


def test_impossible_tokens_are_left_out_or_clipped() -> None:
    """B34: minus infinity has no word in JSON, and the answer was lost."""
    [report] = token_logprobs(np.array([[0.0, -np.inf, -2e4]], dtype=np.float32), [1], 3)
    assert report == TokenLogprobs(LOWEST_LOGPROB, ((0, 0.0), (2, LOWEST_LOGPROB)))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 7])
def test_the_likeliest_come_in_order_and_equals_by_id(count: int) -> None:
    assert likeliest(np.array([0.0, 2.0, 3.0, 2.0, 2.0, -1.0]), count).tolist() == [2, 1, 3, 4, 0, 5][:count]


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0.0},
        {"temperature": 1.0, "top_k": 1},
        {"logit_bias": dict.fromkeys(range(30), -100.0)},
        {"min_tokens": 9, "banned_until_min_tokens": frozenset({7})},
    ],
    ids=["B34 temperature 0", "B34 top_k 1", "B34 most ids biased away", "B34 a ban"],
)
def test_every_token_has_one_finite_report(values: dict[str, Any]) -> None:
    """B34, and B02: there are as many reports as tokens, whatever sampling made of the scores."""
    run = EngineRun()
    run.engine.submit(admitted("r", [1], max_output_tokens=5, logprobs=20, **values))
    run.finish()
    reports = [event.logprobs for event in run.events if isinstance(event, Token)]
    assert len(reports) == 5
    for report in reports:
        assert report is not None
        assert (len(report.top), report.top[0][0]) == (20, 7)
        assert report.top[0][1] == pytest.approx(0.0)
        json.dumps([report.logprob, *report.top], allow_nan=False)


@pytest.mark.parametrize(("num_top", "length"), [(0, 1), (0, 2), (1, 9), (5, 40)])
@pytest.mark.parametrize("num_choices", [1, 2])
def test_a_prompt_is_scored_once_per_token(num_top: int, length: int, num_choices: int) -> None:
    prompt = [token_id % VOCAB_SIZE for token_id in range(length)]
    run = EngineRun(step_tokens=7, running_slots=1)
    values = {"max_output_tokens": 1, "prompt_logprobs": num_top, "num_choices": num_choices}
    for name in ("first", "again"):
        run.engine.submit(admitted(name, prompt, **values))
    run.finish()
    done = [event for event in run.events if isinstance(event, PrefillDone)]
    assert [event.cached_tokens for event in done] == [0] * 2 * num_choices
    for event in done:
        assert event.prompt_logprobs is not None
        assert event.prompt_logprobs[0] is None
        assert len(event.prompt_logprobs) == length
        likeliest_ids = [report.top[0][0] for report in event.prompt_logprobs[1:] if report and report.top]
        assert likeliest_ids == (prompt[1:] if num_top else [])
        assert all(report.logprob == pytest.approx(0.0) for report in event.prompt_logprobs[1:] if report)


def test_a_preempted_prompt_is_still_scored_once_per_token() -> None:
    run = EngineRun(context_length=16, num_pages=9, step_tokens=4, headroom_tokens=0, page_size=2)
    run.engine.submit(admitted("old", [1], max_output_tokens=15, context_length=16))
    run.engine.submit(admitted("young", list(range(15)), max_output_tokens=1, context_length=16, prompt_logprobs=0))
    run.finish()
    [done] = [e for e in run.events if isinstance(e, PrefillDone) and e.request_id == "young"]
    assert run.engine.load().counts.recomputes > 0
    chunks = [chunk for step in run.steps for chunk in step if chunk[0] == "young"]
    again = [chunk[2] for chunk in chunks].index(0, 1)
    assert 0 < sum(chunk[3] for chunk in chunks[:again]) < 14, "it is to be preempted in the middle of its prompt"
    assert done.prompt_logprobs is not None
    assert [report and round(report.logprob, 6) for report in done.prompt_logprobs] == [None] + [0.0] * 14


class PoisonedPrompt:
    """NaN for the rows inside a prompt, sevens afterwards."""

    def run(self, batch: Batch) -> torch.Tensor:
        return torch.tensor(
            [
                7 if t >= chunk.sequence.prompt_tokens - 1 else NOT_A_NUMBER
                for chunk in batch.chunks
                for t in range(chunk.end_position - chunk.num_logit_rows, chunk.end_position)
            ]
        )

    def logits(self, states_N: torch.Tensor) -> torch.Tensor:
        logits_NV = torch.zeros(len(states_N), VOCAB_SIZE)
        logits_NV[states_N == NOT_A_NUMBER] = torch.nan
        return logits_NV


def test_a_prompt_whose_scores_are_not_numbers_fails() -> None:
    run = EngineRun(runner=PoisonedPrompt())
    run.engine.submit(admitted("r", [1, 2, 3], max_output_tokens=2, prompt_logprobs=1))
    run.finish()
    assert [type(event) for event in run.events if event.request_id == "r"][1:] == [Failed]


def test_two_prompts_whose_scores_are_not_numbers_fail_once() -> None:
    """Before, the second one was looked for after the first had ended the request, and the engine ended with it."""
    run = EngineRun(runner=PoisonedPrompt())
    run.engine.submit(admitted("r", [1, 2, 3], [4, 5, 6], max_output_tokens=2, prompt_logprobs=1))
    run.engine.submit(admitted("good", [1, 2, 3], max_output_tokens=2))
    run.finish()
    assert [type(event) for event in run.events if event.request_id == "r"][1:] == [Failed]
    assert run.ends("good") == [(0, "length", "request")]
