"""What a newcomer of the seed replay would be told of its wait, from what the scheduler has inside.

Owns what engine and front do around the estimator: the speed of late, who is inside, and how long answers became. In:
steps, ends and arrivals of the replay. Out: a `WaitEstimate`, or None while the speed is unknown. All is in tokens of
the trace. As in the report, every request is granted as many tokens as a runaway writes, and a normal answer ends by
itself before that: so the estimator knows no length but from answers that have ended.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from fairness_trace import DEFAULT_OUTPUT_TOKENS, RUNAWAY_TOKENS
from plimsoll_runtime.__main__ import slot_rules
from plimsoll_runtime.admission.answer_lengths import AnswerLengths
from plimsoll_runtime.admission.wait_estimate import WaitEstimate, estimate_wait
from plimsoll_runtime.contract.config import RuntimeConfig
from plimsoll_runtime.engine.load import Meter, SequenceLoad
from plimsoll_runtime.engine.sequence import Sequence
from plimsoll_runtime.engine.settings import EngineSettings, make_schedule


@dataclass(frozen=True, slots=True)
class _Load:
    """What the estimator reads of an engine's load."""

    seconds_per_step: float
    sequences: tuple[SequenceLoad, ...]


class Waits:
    """The estimates of one replay."""

    def __init__(self, config: RuntimeConfig, settings: EngineSettings, grain: int) -> None:
        """`settings` are those of the scheduler; each of its tokens stands for `grain`."""
        in_trace_tokens = replace(settings, schedule=make_schedule(config, DEFAULT_OUTPUT_TOKENS))
        self._rules = slot_rules(in_trace_tokens)
        self._grain = grain
        self._meter = Meter()
        self._lengths = AnswerLengths()

    def step_done(self, now: float, sampled_tokens: int) -> None:
        """A step of the scheduler ended at `now`: `grain` steps of an engine."""
        self._meter.step_done(now, sampled_tokens * self._grain, stays_busy=True)

    def learn(self, sequence: Sequence, *, by_itself: bool) -> None:
        """An answer ended, by itself or because something cut it."""
        request, output_tokens = sequence.request, sequence.output_tokens * self._grain
        self._lengths.learn(request.route, request.tenant, output_tokens, by_itself=by_itself)

    def estimate(self, inside: Iterable[Sequence], tenant: str) -> WaitEstimate | None:
        """For a request that comes now. With a free slot nobody is told anything."""
        sequences = tuple(self._seen(sequence) for sequence in inside)
        if len(sequences) < self._rules.running_slots:
            return None
        load = _Load(self._meter.seconds_per_step / self._grain, sequences)
        return estimate_wait(load, self._lengths, self._rules, tenant, lambda _: 1)

    def _seen(self, sequence: Sequence) -> SequenceLoad:
        return SequenceLoad(
            state=_state(sequence),
            route=sequence.request.route,
            tenant=sequence.request.tenant,
            level=sequence.level,
            output_tokens=sequence.output_tokens * self._grain,
            max_output_tokens=RUNAWAY_TOKENS,
        )


def _state(sequence: Sequence) -> Literal["waiting", "running", "paused"]:
    if sequence.state == "running":
        return "running"
    return "paused" if sequence.has_started else "waiting"
