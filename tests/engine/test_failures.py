"""What goes wrong for one request ends that request, and no other."""

from typing import Any

import pytest

from doubles.admitted_requests import admitted
from doubles.engine_runs import VOCAB_SIZE, EngineRun
from doubles.scripted_model import NOT_A_NUMBER, write
from plimsoll_runtime.events import Failed, Token

POISON = 13


def script(prompt: tuple[int, ...], position: int) -> int:
    """Sevens; after the poisoned prompt the third score is not a number."""
    return NOT_A_NUMBER if prompt[0] == POISON and position == 2 else 7


@pytest.mark.parametrize(
    "values", [{}, {"temperature": 1.0}, {"logprobs": 3}, {"num_choices": 2}], ids=["greedy", "drawn", "logprobs", "n"]
)
def test_scores_that_are_not_numbers_fail_that_request_alone(values: dict[str, Any]) -> None:
    """Before: the argmax of a row of NaN is token 0, and the answer went on as if the model had written it."""
    run = EngineRun(script, running_slots=4)
    run.engine.submit(admitted("bad", [POISON] * 4, max_output_tokens=9, **values))
    run.engine.submit(admitted("good", [1] * 4, max_output_tokens=9))
    run.finish()
    assert [event for event in run.events if isinstance(event, Failed)] == [
        Failed("bad", "the model computed scores that are not finite numbers for this request")
    ]
    assert set(run.tokens("bad")) <= {7}
    assert (run.tokens("good"), run.ends("good"), run.ends("bad")) == ([7] * 9, [(0, "length", "request")], [])


def test_what_a_failed_request_computed_is_never_reused() -> None:
    run = EngineRun(script)
    run.engine.submit(admitted("bad", [POISON] * 4, max_output_tokens=9))
    run.finish()
    assert (run.engine.load().pages_cached, run.engine.load().pages_used) == (0, 0)


def test_a_step_that_cannot_compute_one_request_computes_the_others_again() -> None:
    run = EngineRun()
    assert run.scripted is not None
    run.scripted.refused.add("bad")
    for name in ("bad", "good"):
        run.engine.submit(admitted(name, [1, 2], max_output_tokens=3))
    run.finish()
    assert [event for event in run.events if isinstance(event, Failed)] == [Failed("bad", "refused by the script")]
    assert run.ends("good") == [(0, "length", "request")]


@pytest.mark.parametrize(
    "values",
    [{"logit_bias": {VOCAB_SIZE: 5.0}}, {"logit_bias": {-1: 5.0}}, {"banned_until_min_tokens": frozenset({999999})}],
    ids=["B31 bias", "B31 negative", "B32 ban"],
)
def test_ids_that_do_not_exist_touch_nobody(values: dict[str, Any]) -> None:
    """B31, B32: such an id wrote out of bounds, into a neighbour's scores, or ended the engine."""
    run = EngineRun()
    run.engine.submit(admitted("good", [1], max_output_tokens=4))
    run.engine.submit(admitted("bad", [1], min_tokens=1, **values))
    run.finish()
    assert [event.request_id for event in run.events if isinstance(event, Failed)] == ["bad"]
    assert run.tokens("good") == [7] * 4


def test_a_stop_id_that_does_not_exist_never_matches() -> None:
    """B32: with min_tokens it was written into the scores, out of bounds."""
    run = EngineRun()
    run.engine.submit(admitted("r", [1], stop_token_ids=frozenset({999999, -1}), min_tokens=1, max_output_tokens=4))
    run.finish()
    assert run.tokens("r") == [7] * 4


@pytest.mark.parametrize("values", [{}, {"temperature": 1.0}], ids=["B31 greedy", "B31 drawn"])
def test_rows_that_only_pad_the_embedding_are_never_sampled(values: dict[str, Any]) -> None:
    """B31: the model scores more rows than there are tokens; the likeliest of them was an answer without text."""
    run = EngineRun(write([20]), num_tokens=16)
    run.engine.submit(admitted("r", [1, 2], max_output_tokens=8, logprobs=20, prompt_logprobs=20, **values))
    run.finish()
    assert max(run.tokens("r")) < 16
    reports = [event.logprobs for event in run.events if isinstance(event, Token)]
    assert all(report is not None and {i for i, _ in report.top} == set(range(16)) for report in reports)
