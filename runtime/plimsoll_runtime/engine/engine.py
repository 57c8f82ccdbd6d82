"""The engine: admitted requests in, events out, one synchronous `step` at a time.

Owns the requests in the house and when each ends. It knows no HTTP, no text, no threads; time comes from the clock that
it is given. Under a scripted runner and clock every run is repeatable.

Invariants: a request ends in exactly one `Finished` per choice, or one `Expired` or `Failed`; after an abort nothing
more is said. A choice ends by `length` exactly when its sampled ids number its grant; a stop token as the last granted
one ends by `stop`. A sequence that has ended holds no slot and no page.
"""

from collections import OrderedDict
from collections.abc import Callable

import torch

from plimsoll_runtime.admitted import AdmittedRequest
from plimsoll_runtime.engine.batch import Batch, Chunk
from plimsoll_runtime.engine.load import EngineLoad, measure_load
from plimsoll_runtime.engine.logprobs import token_logprobs
from plimsoll_runtime.engine.runner import RequestFailure, Runner
from plimsoll_runtime.engine.sampler import NON_FINITE_MESSAGE, NotSampled, Sampled, sample
from plimsoll_runtime.engine.scheduler import Scheduler
from plimsoll_runtime.engine.sequence import RequestProgress, Sequence, split_request
from plimsoll_runtime.engine.settings import LOGITS_ROWS, EngineSettings
from plimsoll_runtime.events import (
    EngineEvent,
    Expired,
    Failed,
    FinishDetail,
    FinishDetailType,
    Finished,
    FinishReason,
    PrefillDone,
    Started,
    Token,
    TokenLogprobs,
)

_REMEMBERED_ABORTS = 4096
"""An abort may overtake its submit by a moment; so many unknown ids are remembered for that."""


class Engine:
    """Not safe across threads: see EngineThread."""

    def __init__(self, runner: Runner, settings: EngineSettings, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.settings = settings
        self._runner = runner
        self._scheduler = Scheduler(settings)
        self._requests: dict[str, RequestProgress] = {}
        self._early_aborts: OrderedDict[str, None] = OrderedDict()
        self._events: list[EngineEvent] = []
        self._num_steps = 0

    def submit(self, request: AdmittedRequest) -> None:
        """Take a request into the queue. Its id must be new."""
        assert request.request_id not in self._requests, f"request {request.request_id} is already here"
        if request.request_id in self._early_aborts:
            del self._early_aborts[request.request_id]
            return
        unknown = self._unknown_token_id(request)
        if unknown is not None:
            message = f"token id {unknown} is outside the model's {self.settings.num_tokens:,} tokens"
            self._events.append(Failed(request.request_id, message))
            return
        sequences = split_request(request, self.settings)
        self._requests[request.request_id] = RequestProgress(request, self.clock(), sequences)
        self._scheduler.enqueue(sequences)

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """End a request (or one choice of it) without a word; slot and pages are free at once.

        An id that is not here has just finished, or its submit is still on its way: then it is dropped on arrival.
        """
        self._events = [event for event in self._events if not _concerns(event, request_id, choice)]
        progress = self._requests.get(request_id)
        if progress is None:
            if choice is None:
                self._remember_abort(request_id)
            return
        for sequence in list(progress.sequences):
            if choice is None or sequence.choice == choice:
                self._remove(sequence)

    def has_work(self) -> bool:
        """Whether a step would do or say anything."""
        return bool(self._requests or self._events)

    def step(self) -> list[EngineEvent]:
        """Compute one batch and return what happened since the last step, in order.

        Raises what the runner raises, other than a RequestFailure: then the engine is not to be used again.
        """
        self._end_what_is_late(self.clock())
        batch = self._scheduler.plan()
        self._announce_starts(batch)
        if batch.chunks:
            self._compute(batch)
            self._num_steps += 1
        events, self._events = self._events, []
        return events

    def load(self) -> EngineLoad:
        """How busy the engine is."""
        return measure_load(self._requests.values(), self._scheduler, self.clock(), self._num_steps)

    def check_integrity(self) -> None:
        """Assert that sequences, slots and pages agree. For tests: it reads every page."""
        self._scheduler.check_integrity()
        alive = {sequence for progress in self._requests.values() for sequence in progress.sequences}
        assert alive == {*self._scheduler.running, *self._scheduler.waiting}

    def _unknown_token_id(self, request: AdmittedRequest) -> int | None:
        """Admission refuses such ids; should one come through, it must not reach a neighbour's memory."""
        ids = [*request.sampling.logit_bias, *request.banned_until_min_tokens]
        ids += [token_id for prompt in request.prompts for token_id in prompt.token_ids]
        return next((token_id for token_id in ids if not 0 <= token_id < self.settings.num_tokens), None)

    def _remember_abort(self, request_id: str) -> None:
        self._early_aborts[request_id] = None
        if len(self._early_aborts) > _REMEMBERED_ABORTS:
            self._early_aborts.popitem(last=False)

    def _end_what_is_late(self, now: float) -> None:
        for request_id, progress in list(self._requests.items()):
            request = progress.request
            if progress.started and now >= request.deadline:
                for sequence in list(progress.sequences):
                    self._finish(sequence, "length", "deadline")
            elif not progress.started and now >= min(request.queue_deadline, request.deadline):
                self._remove_request(request_id)
                self._events.append(Expired(request_id))

    def _announce_starts(self, batch: Batch) -> None:
        for chunk in batch.chunks:
            progress = self._requests[chunk.sequence.request.request_id]
            if not progress.started:
                progress.started = True
                self._events.append(Started(progress.request.request_id))

    def _compute(self, batch: Batch) -> None:
        try:
            states_NE = self._runner.run(batch)
        except RequestFailure as failure:
            self._fail(failure.request_id, failure.message)
            return
        self._scheduler.commit(batch)
        self._score_prompts(batch, states_NE)
        self._sample(batch, states_NE)

    def _logits(self, states_NE: torch.Tensor) -> torch.Tensor:
        """Logits [N, addressable ids]: the rows that only pad the embedding are cut off."""
        return self._runner.logits(states_NE)[:, : self.settings.num_tokens]

    def _score_prompts(self, batch: Batch, states_NE: torch.Tensor) -> None:
        """Logprobs of prompt tokens: row t of the prompt scores token t + 1."""
        row = 0
        for chunk in batch.chunks:
            if chunk.sequence.collects_prompt_logprobs and chunk.num_logit_rows:
                self._score_prompt(chunk, states_NE[row : row + chunk.num_logit_rows])
            row += chunk.num_logit_rows

    def _score_prompt(self, chunk: Chunk, states_NE: torch.Tensor) -> None:
        known, num_top = chunk.sequence.progress.logprobs, chunk.sequence.request.prompt_logprobs
        assert known is not None
        assert num_top is not None
        wanted = chunk.sequence.prompt.token_ids[len(known) : len(known) + len(states_NE)]
        for start in range(0, len(wanted), LOGITS_ROWS):
            token_ids = wanted[start : start + LOGITS_ROWS]
            logits_NV = self._logits(states_NE[start : start + len(token_ids)])
            if not bool(logits_NV.max(dim=-1).values.isfinite().all()):
                self._fail(chunk.sequence.request.request_id, NON_FINITE_MESSAGE)
                return
            known += token_logprobs(logits_NV.cpu().numpy(), token_ids, num_top)

    def _sample(self, batch: Batch, states_NE: torch.Tensor) -> None:
        """Sample the sequences whose chunk reached their last known token, LOGITS_ROWS at a time."""
        rows: list[int] = []
        sequences: list[Sequence] = []
        end_row = 0
        for chunk in batch.chunks:
            end_row += chunk.num_logit_rows
            if chunk.samples:
                rows.append(end_row - 1)
                sequences.append(chunk.sequence)
        for start in range(0, len(rows), LOGITS_ROWS):
            some = sequences[start : start + LOGITS_ROWS]
            logits_NV = self._logits(states_NE[rows[start : start + LOGITS_ROWS]])
            for sequence, outcome in zip(some, sample(logits_NV, some), strict=True):
                self._accept(sequence, outcome)

    def _accept(self, sequence: Sequence, outcome: Sampled | NotSampled) -> None:
        if sequence.state == "finished":
            return  # a sibling of it failed in this very step, and the request with it
        request = sequence.request
        if isinstance(outcome, NotSampled):
            self._fail(request.request_id, outcome.message)
            return
        self._report_prefill(sequence)
        sequence.append(outcome.token_id)
        self._events.append(Token(request.request_id, sequence.choice, outcome.token_id, outcome.logprobs))
        if outcome.token_id in request.stop_token_ids and sequence.output_tokens >= request.min_tokens:
            self._finish(sequence, "stop", None)
        elif sequence.remaining_tokens == 0:
            self._finish(sequence, "length", sequence.prompt.budget.limited_by)

    def _report_prefill(self, sequence: Sequence) -> None:
        if sequence.prefill_reported:
            return
        sequence.prefill_reported = True
        cached_tokens, logprobs = sequence.progress.cached_tokens, sequence.progress.logprobs
        assert cached_tokens is not None
        scores: tuple[TokenLogprobs | None, ...] | None = tuple(logprobs) if logprobs is not None else None
        self._events.append(PrefillDone(sequence.request.request_id, sequence.choice, cached_tokens, scores))

    def _finish(self, sequence: Sequence, reason: FinishReason, ended_by: FinishDetailType | None) -> None:
        detail = None if ended_by is None else FinishDetail(ended_by, sequence.output_tokens)
        self._remove(sequence)
        self._events.append(Finished(sequence.request.request_id, sequence.choice, reason, detail))

    def _fail(self, request_id: str, message: str) -> None:
        for sequence in self._requests[request_id].sequences:
            self._scheduler.distrust(sequence)
        self._remove_request(request_id)
        self._events.append(Failed(request_id, message))

    def _remove_request(self, request_id: str) -> None:
        for sequence in list(self._requests[request_id].sequences):
            self._remove(sequence)

    def _remove(self, sequence: Sequence) -> None:
        progress = self._requests[sequence.request.request_id]
        self._scheduler.finish(sequence)
        progress.sequences.remove(sequence)
        if not progress.sequences:
            del self._requests[sequence.request.request_id]


def _concerns(event: EngineEvent, request_id: str, choice: int | None) -> bool:
    return event.request_id == request_id and choice in (None, getattr(event, "choice", None))
