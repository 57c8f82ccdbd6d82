"""The law of an admitted request: it ends in exactly one way, whatever its neighbours and the client do.

A random history of submits, steps, aborts, passing time and failures runs on a tiny engine (context 8, page 2) whose
pool holds little more than one context, so that nearly every history preempts.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from doubles.admitted_requests import admitted
from doubles.engine_runs import EngineRun
from doubles.scripted_model import NOT_A_NUMBER
from plimsoll_runtime.admitted import AdmittedRequest
from plimsoll_runtime.events import EngineEvent, Expired, Failed, FinishDetail, Finished, PrefillDone, Started, Token

CONTEXT = 8
END = 3
POISON = 30


def script(prompt: tuple[int, ...], position: int) -> int:
    """Depends on prompt and position alone; a prompt that begins with POISON breaks at its third token."""
    if prompt[0] == POISON and position == 2:
        return NOT_A_NUMBER
    return (sum(prompt) * 7 + position * 5) % 31


PROMPTS = st.lists(st.sampled_from([1, 2, POISON]), min_size=1, max_size=CONTEXT - 1)
REQUESTS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "max_output_tokens": st.none() | st.integers(1, CONTEXT),
        "num_choices": st.integers(1, 3),
        "tenant": st.sampled_from(["", "other"]),
        "stop_token_ids": st.sampled_from([frozenset(), frozenset({END}), frozenset(range(0, 31, 4))]),
        "min_tokens": st.integers(0, 3),
        "prompt_logprobs": st.sampled_from([None, None, 0, 2]),
        "logprobs": st.sampled_from([None, 1]),
        "temperature": st.sampled_from([0.0, 1.0]),
    }
)
ENGINES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "num_pages": st.integers(CONTEXT // 2, CONTEXT // 2 + 4),
        "running_slots": st.integers(1, 4),
        "step_tokens": st.integers(1, 12),
        "headroom_tokens": st.integers(0, 4),
        "prefix_caching": st.booleans(),
    }
)


class Life(RuleBasedStateMachine):
    """`said` has every event by request; `aborted` what must stay silent, from which event on."""

    @initialize(values=ENGINES)
    def start(self, values: dict[str, Any]) -> None:
        self.run = EngineRun(script, context_length=CONTEXT, **values)
        self.submitted: dict[str, AdmittedRequest] = {}
        self.aborted: dict[str, int] = {}

    @rule(prompts=st.lists(PROMPTS, min_size=1, max_size=2), values=REQUESTS, patience=st.integers(1, 20))
    def submit(self, prompts: list[list[int]], values: dict[str, Any], patience: int) -> None:
        request_id = f"r{len(self.submitted)}"
        values["queue_deadline"] = self.run.clock.now + patience
        values["deadline"] = self.run.clock.now + 2 * patience
        request = admitted(request_id, *prompts, context_length=CONTEXT, **values)
        self.submitted[request_id] = request
        self.run.engine.submit(request)

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        self.run.step(count)

    @rule(seconds=st.integers(1, 5))
    def wait(self, seconds: int) -> None:
        self.run.clock.now += seconds

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.submitted)))
        self.run.engine.abort(request_id)
        self.aborted.setdefault(request_id, len(self.run.events))

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        self.run.scripted.refused.add(data.draw(st.sampled_from(sorted(self.submitted))))

    @invariant()
    def pages_add_up(self) -> None:
        if hasattr(self, "run"):
            self.run.engine.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "run"):
            return
        self.run.finish()
        load = self.run.engine.load()
        assert (load.running, load.waiting, load.pages_used) == (0, 0, 0)
        for request_id, request in self.submitted.items():
            said = [event for event in self.run.events if event.request_id == request_id]
            if request_id not in self.aborted:
                check_complete(request, said)
        for request_id, silent_from in self.aborted.items():
            assert not any(event.request_id == request_id for event in self.run.events[silent_from:])


def check_complete(request: AdmittedRequest, said: list[EngineEvent]) -> None:
    """One ending, in order, with exactly the tokens that the script and the budget give."""
    if any(isinstance(event, Expired) for event in said):
        assert said == [Expired(request.request_id)]
        return
    assert [event for event in said if isinstance(event, Started)] == said[:1]
    if isinstance(said[-1], Failed):
        assert sum(isinstance(event, Failed) for event in said) == 1
        return
    for choice in range(len(request.prompts) * request.num_choices):
        check_choice(request, choice, [event for event in said[1:] if getattr(event, "choice", None) == choice])


def check_choice(request: AdmittedRequest, choice: int, said: list[EngineEvent]) -> None:
    prompt = request.prompts[choice // request.num_choices]
    tokens = [event.token_id for event in said if isinstance(event, Token)]
    assert [type(event) for event in said] == [PrefillDone] * bool(tokens) + [Token] * len(tokens) + [Finished]
    end = said[-1]
    assert isinstance(end, Finished)
    assert tokens == [script(prompt.token_ids, position) for position in range(len(tokens))]
    stopped = [i for i, t in enumerate(tokens, start=1) if t in request.stop_token_ids and i >= request.min_tokens]
    if stopped:
        assert (stopped, end.reason, end.detail) == ([len(tokens)], "stop", None)
    elif end.detail != FinishDetail("deadline", len(tokens)):
        granted = prompt.budget.max_output_tokens
        assert (len(tokens), end.reason, end.detail) == (
            granted,
            "length",
            FinishDetail(prompt.budget.limited_by, granted),
        )
    if tokens and request.prompt_logprobs is not None:
        assert isinstance(said[0], PrefillDone)
        assert len(said[0].prompt_logprobs or ()) == len(prompt.token_ids)


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
