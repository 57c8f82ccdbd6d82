"""The engine: admitted requests in, events out, one synchronous `step` at a time.

Owns the requests in the house and when each ends, and carries out what the schedule moves. It knows no HTTP, no text
and no threads; time comes from the clock that it is given. Under a scripted runner and clock every run is repeatable.

Invariants: a request ends in exactly one `Finished` per choice, or one `Expired`, `Aborted` or `Failed`; after an abort
by the client nothing more is said. A choice ends by `length` exactly when its sampled ids number its grant, unless its
detail says otherwise; a stop token as the last granted one ends by `stop`. A sequence that has ended holds no slot, no
page and no host memory.
"""

from collections.abc import Callable

import torch

from plimsoll_runtime.admitted import AdmittedRequest
from plimsoll_runtime.engine.batch import Batch, Chunk, StateCopy
from plimsoll_runtime.engine.host_kv import HostKVFullError, KVStore, NoKV
from plimsoll_runtime.engine.load import EngineLoad, Meter, measure_load
from plimsoll_runtime.engine.logprobs import token_logprobs
from plimsoll_runtime.engine.runaway import WINDOW_TOKENS, find_repetition, is_due
from plimsoll_runtime.engine.runner import RequestFailure, Runner
from plimsoll_runtime.engine.sampler import NON_FINITE_MESSAGE, NotSampled, Sampled, sample
from plimsoll_runtime.engine.scheduler import Scheduler
from plimsoll_runtime.engine.sequence import RequestProgress, Sequence, split_request
from plimsoll_runtime.engine.settings import LOGITS_ROWS, EngineSettings
from plimsoll_runtime.events import (
    Aborted,
    EngineEvent,
    Expired,
    Failed,
    FailureCode,
    FinishDetail,
    Finished,
    FinishReason,
    Paused,
    PrefillDone,
    Resumed,
    Started,
    Token,
    TokenLogprobs,
)


class Engine:
    """Not safe across threads: see EngineThread. `host` keeps keys and values of what is moved out of the cache."""

    def __init__(
        self, runner: Runner, settings: EngineSettings, clock: Callable[[], float], host: KVStore | None = None
    ) -> None:
        self.clock = clock
        self.settings = settings
        self._runner = runner
        self._scheduler = Scheduler(settings)
        self._requests: dict[str, RequestProgress] = {}
        self._events: list[EngineEvent] = []
        self._host = NoKV() if host is None else host
        self._meter = Meter()

    def submit(self, request: AdmittedRequest) -> None:
        """Take a request into the queue. Its id must be new."""
        assert request.request_id not in self._requests, f"request {request.request_id} is already here"
        unknown = self._unknown_token_id(request)
        if unknown is not None:
            message = f"token id {unknown} is outside the model's {self.settings.num_tokens:,} tokens"
            self._events.append(Failed(request.request_id, message))
            return
        sequences = split_request(request, self.settings)
        now = self.clock()
        self._requests[request.request_id] = RequestProgress(request, now, sequences)
        self._scheduler.enqueue(sequences, now)

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """End a request (or one choice of it) without a word; slot and pages are free at once.

        An id that is not here has just finished.
        """
        self._events = [event for event in self._events if not _concerns(event, request_id, choice)]
        progress = self._requests.get(request_id)
        for sequence in list(progress.sequences) if progress is not None else ():
            if choice is None or sequence.choice == choice:
                self._remove(sequence)

    def has_work(self) -> bool:
        """Whether a step would do or say anything."""
        return bool(self._requests or self._events)

    def step(self) -> list[EngineEvent]:
        """Compute one batch and return what happened since the last step, in order.

        Raises what the runner raises, other than a RequestFailure: then the engine is not to be used again.
        """
        now = self.clock()
        self._end_what_is_late(now)
        batch = self._scheduler.plan(now)
        self._make_moves(batch)
        self._announce(batch)
        num_sampled = sum(chunk.samples for chunk in batch.chunks)
        if batch.chunks:
            self._compute(batch)
            self._meter.step_done(self.clock(), num_sampled, bool(self._requests))
        events, self._events = self._events, []
        return events

    def load(self) -> EngineLoad:
        """How busy the engine is."""
        return measure_load(self._requests.values(), self._scheduler, self._host, self._meter, self.clock())

    def check_integrity(self) -> None:
        """Assert that sequences, slots and pages agree. For tests: it reads every page."""
        self._scheduler.check_integrity()
        alive = {sequence for progress in self._requests.values() for sequence in progress.sequences}
        assert alive == {*self._scheduler.running, *self._scheduler.waiting()}

    def _unknown_token_id(self, request: AdmittedRequest) -> int | None:
        """Admission refuses such ids; should one come through, it must not reach a neighbour's memory."""
        ids = [*request.sampling.logit_bias, *request.banned_until_min_tokens]
        ids += [token_id for prompt in request.prompts for token_id in prompt.token_ids]
        return next((token_id for token_id in ids if not 0 <= token_id < self.settings.num_tokens), None)

    def _end_what_is_late(self, now: float) -> None:
        for request_id, progress in list(self._requests.items()):
            request = progress.request
            if progress.started and now >= request.deadline:
                self._end_at_deadline(progress)
            elif not progress.started and now >= min(request.queue_deadline, request.deadline):
                self._remove_request(request_id)
                self._events.append(Expired(request_id))

    def _end_at_deadline(self, progress: RequestProgress) -> None:
        request = progress.request
        self._meter.deadline_truncations += 1
        if request.deadline_action == "abort":
            self._remove_request(request.request_id)
            self._events.append(Aborted(request.request_id))
        else:
            for sequence in list(progress.sequences):
                self._finish(sequence, "length", FinishDetail("deadline", sequence.output_tokens))

    def _make_moves(self, batch: Batch) -> None:
        """In order, before anything of the step is written: what one move leaves may be the next one's."""
        for move in batch.moves:
            if isinstance(move, StateCopy):
                self._host.copy_state(move.source, move.target)
                continue
            if move.direction == "in":
                self._host.give_back(move.sequence, move.pages, move.state_slot)
                continue
            try:
                self._host.take(move.sequence, move.pages, move.state_slot)
            except HostKVFullError:
                self._scheduler.lose(move.sequence)

    def _announce(self, batch: Batch) -> None:
        """Say of each request that its first sequence starts, that its last one lost its slot, or that one is back."""
        for chunk in batch.chunks:
            progress = self._requests[chunk.sequence.request.request_id]
            if not progress.started:
                progress.started = True
                self._events.append(Started(progress.request.request_id))
        for request_id, progress in self._requests.items():
            is_paused = progress.started and not progress.is_running
            if is_paused != progress.paused:
                progress.paused = is_paused
                self._events.append(Paused(request_id) if is_paused else Resumed(request_id))

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
            is_alive = chunk.sequence.state != "finished"  # else another prompt of its request failed in this step
            if is_alive and chunk.sequence.collects_prompt_logprobs and chunk.num_logit_rows:
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
            self._fail(request.request_id, outcome.message, outcome.code)
            return
        self._report_prefill(sequence)
        sequence.append(outcome.token_id)
        self._events.append(Token(request.request_id, sequence.choice, outcome.token_id, outcome.logprobs))
        if outcome.token_id in request.stop_token_ids and sequence.output_tokens >= request.min_tokens:
            self._finish(sequence, "stop", None)
        elif sequence.remaining_tokens == 0:
            self._finish(sequence, "length", FinishDetail(sequence.prompt.budget.limited_by, sequence.output_tokens))
        elif is_due(sequence.output_tokens) and (self.settings.detects_runaways or request.stop_on_runaway):
            self._look_for_repetition(sequence)

    def _look_for_repetition(self, sequence: Sequence) -> None:
        """A repetition ends where that was asked for; else it only loses its place in front, which harms nobody when
        it was none."""
        start = max(sequence.prompt_tokens, len(sequence.token_ids) - WINDOW_TOKENS)
        found = None if sequence.is_demoted else find_repetition(sequence.token_ids[start:])
        if found is None:
            return
        if sequence.request.stop_on_runaway:
            self._meter.repetition_stops += 1
            detail = FinishDetail("repetition", sequence.output_tokens, found.period, found.copies)
            self._finish(sequence, "length", detail)
        else:
            self._meter.demotions += 1
            sequence.is_demoted = True

    def _report_prefill(self, sequence: Sequence) -> None:
        if sequence.prefill_reported:
            return
        sequence.prefill_reported = True
        cached_tokens, logprobs = sequence.progress.cached_tokens, sequence.progress.logprobs
        assert cached_tokens is not None
        scores: tuple[TokenLogprobs | None, ...] | None = tuple(logprobs) if logprobs is not None else None
        self._events.append(PrefillDone(sequence.request.request_id, sequence.choice, cached_tokens, scores))

    def _finish(self, sequence: Sequence, reason: FinishReason, detail: FinishDetail | None) -> None:
        self._remove(sequence)
        self._events.append(Finished(sequence.request.request_id, sequence.choice, reason, detail))

    def _fail(self, request_id: str, message: str, code: FailureCode = "engine_failure") -> None:
        for sequence in self._requests[request_id].sequences:
            self._scheduler.distrust(sequence)
        self._remove_request(request_id)
        self._events.append(Failed(request_id, message, code))

    def _remove_request(self, request_id: str) -> None:
        for sequence in list(self._requests[request_id].sequences):
            self._remove(sequence)

    def _remove(self, sequence: Sequence) -> None:
        progress = self._requests[sequence.request.request_id]
        self._scheduler.finish(sequence)
        self._host.drop(sequence)
        progress.sequences.remove(sequence)
        if not progress.sequences:
            del self._requests[sequence.request.request_id]


def _concerns(event: EngineEvent, request_id: str, choice: int | None) -> bool:
    return event.request_id == request_id and choice in (None, getattr(event, "choice", None))
