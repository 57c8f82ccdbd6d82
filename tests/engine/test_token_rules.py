"""A rule over what a sequence writes binds that sequence alone, however it is sampled and wherever it goes."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from doubles.admitted_requests import admitted
from doubles.engine_runs import VOCAB_SIZE, EngineRun
from engine.test_pausing import CONTEXT, make_run
from plimsoll_runtime.admitted import AdmittedPrompt
from plimsoll_runtime.events import Failed, Paused
from plimsoll_runtime.token_rules import RuleFailure, TokenRule

END = 31


class Upwards:
    """Each token is above the one before, by 1 or 2, from `first` on; 20 and above is followed by the end alone."""

    def __init__(self, first: int = 1) -> None:
        self.last = first - 1
        self.seen: list[int] = []

    def allowed(self) -> npt.NDArray[np.bool_] | None:
        allowed_V = np.zeros(VOCAB_SIZE, dtype=np.bool_)
        allowed_V[[END] if self.last >= 20 else [self.last + 1, self.last + 2]] = True
        return allowed_V

    def advance(self, token_id: int) -> None:
        self.seen.append(token_id)
        self.last = token_id


def upwards(_prompt: AdmittedPrompt) -> TokenRule:
    return Upwards()


def bound(request_id: str, **values: Any) -> Any:
    values = {"new_rule": upwards, "stop_token_ids": frozenset({END}), **values}
    return admitted(request_id, [9, 9], context_length=CONTEXT, **values)


def is_upwards(tokens: list[int]) -> bool:
    *body, end = tokens
    steps = np.diff([0, *body])
    return end == END and body[-1] >= 20 and set(steps.tolist()) <= {1, 2}


SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"logprobs": 3},
    {"temperature": 1.3, "seed": 5},
    {"temperature": 1.0, "top_p": 0.5, "seed": 6},
    {"temperature": 1.0, "top_k": 1, "seed": 7},
    {"temperature": 2.0, "min_p": 0.9, "seed": 8},
    {"presence_penalty": 2.0, "frequency_penalty": -2.0, "repetition_penalty": 3.0},
    {"logit_bias": {5: 100.0, 6: -100.0}},
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_nothing_else_is_written_however_it_is_sampled(sampling: dict[str, Any]) -> None:
    """The script wants 7 for ever: without the rule nothing else would come."""
    run = EngineRun()
    run.engine.submit(bound("a", **sampling))
    run.finish()
    assert is_upwards(run.tokens("a"))
    assert run.ends("a") == [(0, "stop", None)]


def test_a_bias_works_among_what_is_allowed() -> None:
    run = EngineRun()
    run.engine.submit(bound("a", logit_bias={2: 3.0, 4: 3.0, 3: -3.0}))
    run.finish()
    assert run.tokens("a")[:2] == [2, 4]


def test_the_limit_cuts_as_always() -> None:
    run = EngineRun()
    run.engine.submit(bound("a", max_output_tokens=4))
    run.finish()
    assert len(run.tokens("a")) == 4
    assert run.ends("a") == [(0, "length", "request")]


def test_choices_have_rules_of_their_own() -> None:
    made: list[Upwards] = []

    def new_rule(_prompt: AdmittedPrompt) -> TokenRule:
        made.append(Upwards())
        return made[-1]

    run = EngineRun(running_slots=3)
    run.engine.submit(bound("a", new_rule=new_rule, num_choices=3, temperature=1.5, seed=3))
    run.finish()
    written = [run.tokens("a", choice) for choice in range(3)]
    assert all(map(is_upwards, written))
    assert len({tuple(tokens) for tokens in written}) > 1
    assert [rule.seen for rule in made] == written


def test_neighbours_write_what_they_write_alone() -> None:
    """Half of a batch is bound; what the other half draws does not change by a token."""
    free = {f"free {seed}": {"temperature": 1.5, "seed": seed, "logprobs": 2} for seed in range(4)}
    written: list[list[list[int]]] = []
    for is_mixed in (False, True):
        run = make_run(running_slots=8, num_pages=400)
        for name, sampling in free.items():
            run.engine.submit(admitted(name, [3, 4], context_length=CONTEXT, max_output_tokens=20, **sampling))
            if is_mixed:
                run.engine.submit(bound(f"bound {name}", temperature=1.0, seed=1))
        run.finish()
        written.append([run.tokens(name) for name in free])
    assert written[0] == written[1]
    assert all(is_upwards(run.tokens(f"bound {name}")) for name in free)


@pytest.mark.parametrize("host_pages", [100, 0], ids=["moved to the host", "computed again"])
def test_a_rule_travels_with_its_sequence(host_pages: int) -> None:
    run = make_run(running_slots=2, host_pages=host_pages)
    alone = make_run(running_slots=2)
    names = [f"r{i}" for i in range(4)]
    for index, name in enumerate(names):
        for each in (run, alone) if index == 0 else (run,):
            each.engine.submit(bound(name, temperature=1.0, seed=index))
    run.finish()
    alone.finish()
    assert any(isinstance(event, Paused) for event in run.events)
    assert all(is_upwards(run.tokens(name)) for name in names)
    assert run.tokens("r0") == alone.tokens("r0")


class Failing(Upwards):
    def allowed(self) -> npt.NDArray[np.bool_] | None:
        if self.last > 4:
            raise RuleFailure("form is too complex")
        return super().allowed()


class Nothing(Upwards):
    def allowed(self) -> npt.NDArray[np.bool_] | None:
        return np.zeros(VOCAB_SIZE, dtype=np.bool_)


class Anything(Upwards):
    def allowed(self) -> npt.NDArray[np.bool_] | None:
        return None


def test_a_rule_that_fails_ends_its_own_request_and_no_other() -> None:
    run = EngineRun()
    run.engine.submit(bound("bad", new_rule=lambda _prompt: Failing()))
    run.engine.submit(bound("good"))
    run.finish()
    failed = [event for event in run.events if isinstance(event, Failed)]
    assert failed == [Failed("bad", "form is too complex", "invalid_value")]
    assert is_upwards(run.tokens("good"))


def test_a_rule_that_leaves_nothing_is_a_failure_in_words() -> None:
    run = EngineRun()
    run.engine.submit(bound("bad", new_rule=lambda _prompt: Nothing()))
    run.finish()
    (failed,) = [event for event in run.events if isinstance(event, Failed)]
    assert "cannot be written" in failed.message


def test_a_rule_that_allows_all_changes_nothing() -> None:
    run = EngineRun()
    run.engine.submit(bound("a", new_rule=lambda _prompt: Anything(), max_output_tokens=3))
    run.finish()
    assert run.tokens("a") == [7, 7, 7]
