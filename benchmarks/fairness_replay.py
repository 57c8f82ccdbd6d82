"""The seed replay under a virtual clock: the real scheduler, a model that only takes time, clients that never think.

In: entries, a `Schedule`, a `Pace`. Out: one `Answer` for each entry, and what the scheduler counted. Nothing here is
measured on the wall: the same arguments give the same figures on every machine. A step computes for so long as its
batch takes at the given pace; what the engine does around the scheduler (end what is late) is done here.

Each token of the scheduler stands for `grain` tokens of the trace, and so does each token of the thresholds and of the
quantum: the schedule is the same as at grain 1 to within `grain` tokens, 0.27 s at 16, and 16 times as fast to compute.
"""

import math
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from doubles.admitted_requests import admitted
from fairness_answers import Answer, Counts, EstimatedWait, Pace
from fairness_trace import (
    DEFAULT_OUTPUT_TOKENS,
    NUM_CLIENTS,
    ONE_KEY,
    PROMPT_TOKENS,
    RUNAWAY_TOKENS,
    SDK_RETRIES,
    Desk,
    Entry,
)
from fairness_waits import Waits
from plimsoll_runtime.admission.wait_estimate import WaitEstimate
from plimsoll_runtime.contract.config import RuntimeConfig
from plimsoll_runtime.engine.batch import Batch, Move
from plimsoll_runtime.engine.scheduler import Scheduler
from plimsoll_runtime.engine.sequence import Sequence as EngineSequence
from plimsoll_runtime.engine.sequence import split_request
from plimsoll_runtime.engine.settings import EngineSettings, Schedule, make_schedule

PAGE_TOKENS = 16
GAIN_OF_TWICE_THE_ROWS = 1.3
"""Tokens per second of two streams over those of one, and of four over those of two: what mixtures of experts gain that
are bound by memory. Dense models gain more."""

HOST_BYTES_PER_SECOND = 25e9
HOST_KV_TOKENS = 200_000
KV_BYTES_PER_TOKEN = 98_304
"""Of Qwen3-30B-A3B, the model of the report."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run the trace: a configuration of the server, and what its clients put up with.

    With `timeout_seconds` clients hang up after so much silence and ask again; `deadline_seconds` is when the server
    ends an answer by itself. The cache has room for everything unless the configuration says less.
    """

    name: str
    config: RuntimeConfig
    timeout_seconds: float | None = None
    deadline_seconds: float | None = None
    tenants: Sequence[str] = ONE_KEY
    grain: int = 16

    @property
    def schedule(self) -> Schedule:
        """In tokens of the scheduler."""
        made = make_schedule(self.config, DEFAULT_OUTPUT_TOKENS)
        quantum = None if made.quantum_tokens is None else _in_grains(made.quantum_tokens, self.grain)
        thresholds = tuple(_in_grains(threshold, self.grain) for threshold in made.thresholds)
        return replace(made, thresholds=thresholds, quantum_tokens=quantum)


@dataclass(frozen=True, slots=True)
class Replay:
    """What one arm did."""

    answers: list[Answer]
    counts: Counts


@dataclass(slots=True)
class _Try:
    """What a client is waiting for. `asked`: when it wanted the entry; `sent`: its latest try; `estimate`: of the wait
    for a slot, until that is known."""

    entry: Entry
    client: int
    asked: float
    sent: float = 0.0
    got_slot: float | None = None
    first_token: float | None = None
    last_token: float = 0.0
    longest_gap: float = 0.0
    gave_up: int = 0
    wasted_tokens: int = 0
    estimate: WaitEstimate | None = None
    waits: list[EstimatedWait] = field(default_factory=list)


def run_replay(entries: Sequence[Entry], arm: Arm, pace: Pace, late: Sequence[tuple[float, Entry]] = ()) -> Replay:
    """Every entry to its end. The clients begin together at time 0; `late` are (time, entry) of others, in order."""
    return _Replay(entries, arm, pace, late).run()


class _Replay:
    """The loop, and everything that it counts."""

    def __init__(self, entries: Sequence[Entry], arm: Arm, pace: Pace, late: Sequence[tuple[float, Entry]]) -> None:
        self._arm = arm
        self._pace = pace
        self._settings = _settings(arm)
        self._scheduler = Scheduler(self._settings)
        self._waits = Waits(arm.config, self._settings, arm.grain)
        self._desk = Desk(entries, arm.tenants)
        self._late = deque(late)
        self._now = 0.0
        self._tries: dict[EngineSequence, _Try] = {}
        self._answers: list[Answer] = []
        self._served: dict[str, float] = {}
        self._shared_tokens: dict[str, float] = {}
        self._moved_tokens = self._recomputed_tokens = self._peak_paused = self._peak_pages = 0

    def run(self) -> Replay:
        """Step until no client has anything left to ask for."""
        for client in range(NUM_CLIENTS):
            self._ask_next(client)
        while self._tries:
            while self._late and self._now >= self._late[0][0]:
                self._send(_Try(self._late.popleft()[1], NUM_CLIENTS - 1, self._now))
            self._end_what_is_late()
            batch = self._scheduler.plan(self._now)
            self._note(batch)
            self._now += self._seconds(batch)
            self._compute(batch)
        return Replay(self._answers, self._counts())

    def _ask_next(self, client: int) -> None:
        entry = self._desk.next_for(client)
        if entry is not None:
            self._send(_Try(entry, client, self._now))
        elif not self._shared_tokens:
            self._shared_tokens = self._served

    def _send(self, attempt: _Try) -> None:
        request = admitted(
            f"{attempt.entry.number}.{attempt.gave_up}",
            [0] * _in_grains(PROMPT_TOKENS, self._arm.grain),
            max_output_tokens=_in_grains(attempt.entry.output_tokens, self._arm.grain),
            context_length=self._settings.context_length,
            tenant=self._arm.tenants[attempt.client],
        )
        (sequence,) = split_request(request, self._settings)
        attempt.sent = self._now
        attempt.estimate = self._waits.estimate(self._tries, request.tenant)
        self._tries[sequence] = attempt
        self._scheduler.enqueue([sequence], self._now)

    def _end_what_is_late(self) -> None:
        for sequence, attempt in list(self._tries.items()):
            waited = self._now - attempt.sent
            if self._arm.deadline_seconds is not None and waited >= self._arm.deadline_seconds:
                self._end(sequence)
            elif self._arm.timeout_seconds is not None and waited >= self._arm.timeout_seconds:
                self._give_up(sequence)

    def _give_up(self, sequence: EngineSequence) -> None:
        """The client hangs up: what was written for it is thrown away, and it asks again unless it is tired."""
        attempt = self._tries[sequence]
        attempt.gave_up += 1
        attempt.wasted_tokens += sequence.output_tokens * self._arm.grain
        if attempt.gave_up > SDK_RETRIES:
            self._end(sequence, has_failed=True)
            return
        del self._tries[sequence]
        self._scheduler.finish(sequence)
        self._waits.learn(sequence, by_itself=False)
        self._send(attempt)

    def _note(self, batch: Batch) -> None:
        """What the plan changed: who got its first slot, what was moved, computed again or is paused."""
        for chunk in batch.chunks:
            attempt = self._tries[chunk.sequence]
            attempt.got_slot = self._now if attempt.got_slot is None else attempt.got_slot
            self._compare(attempt)
            again = min(chunk.end_position, chunk.sequence.charged_tokens) - chunk.first_position
            self._recomputed_tokens += max(0, again) * self._arm.grain
        self._moved_tokens += self._tokens_to_move(batch)
        num_paused = sum(sequence.has_started for sequence in self._tries) - len(self._scheduler.running)
        self._peak_paused = max(self._peak_paused, num_paused)
        self._peak_pages = max(self._peak_pages, self._scheduler.residency.allocator.num_used)

    def _compare(self, attempt: _Try) -> None:
        """With its first slot the truth of an estimate is known."""
        if attempt.estimate is not None:
            told = attempt.estimate
            attempt.waits.append(EstimatedWait(told.soonest, told.likely, told.latest, self._now - attempt.sent))
            attempt.estimate = None

    def _seconds(self, batch: Batch) -> float:
        """How long the step takes: moves, then prefill, then one token for each sequence that samples."""
        grain, rows = self._arm.grain, sum(chunk.samples for chunk in batch.chunks)
        prefilled = sum(chunk.num_tokens for chunk in batch.chunks if chunk.num_tokens > 1) * grain
        prefill_seconds = prefilled / PROMPT_TOKENS * self._pace.prefill_seconds
        move_seconds = self._tokens_to_move(batch) * KV_BYTES_PER_TOKEN / HOST_BYTES_PER_SECOND
        return move_seconds + prefill_seconds + self._decode_seconds(rows)

    def _tokens_to_move(self, batch: Batch) -> int:
        """Whose keys and values leave the device or come back."""
        num_pages = sum(len(move.pages) for move in batch.moves if isinstance(move, Move))
        return num_pages * self._settings.page_size * self._arm.grain

    def _decode_seconds(self, rows: int) -> float:
        if rows == 0:
            return 0.0
        gain: float = GAIN_OF_TWICE_THE_ROWS ** math.log2(rows)
        tokens_per_second = self._pace.tokens_per_second * gain
        return self._arm.grain * rows / tokens_per_second

    def _compute(self, batch: Batch) -> None:
        self._scheduler.commit(batch)
        self._waits.step_done(self._now, sum(chunk.samples for chunk in batch.chunks))
        for chunk in batch.chunks:
            if chunk.samples:
                self._write(chunk.sequence)

    def _write(self, sequence: EngineSequence) -> None:
        attempt = self._tries[sequence]
        sequence.append(0)
        if attempt.first_token is None:
            attempt.first_token = self._now
        else:
            attempt.longest_gap = max(attempt.longest_gap, self._now - attempt.last_token)
        attempt.last_token = self._now
        if sequence.remaining_tokens == 0:
            self._end(sequence)

    def _end(self, sequence: EngineSequence, has_failed: bool = False) -> None:
        attempt = self._tries[sequence]
        is_whole = sequence.remaining_tokens == 0
        written = attempt.entry.output_tokens if is_whole else sequence.output_tokens * self._arm.grain
        self._answers.append(
            Answer(
                entry=attempt.entry,
                tenant=self._arm.tenants[attempt.client],
                sent=attempt.asked,
                got_slot=self._now if attempt.got_slot is None else attempt.got_slot,
                first_token=self._now if attempt.first_token is None else attempt.first_token,
                ended=self._now,
                output_tokens=0 if has_failed else written,
                longest_gap=attempt.longest_gap,
                gave_up=attempt.gave_up,
                wasted_tokens=attempt.wasted_tokens,
                was_cut=not is_whole and not has_failed,
                has_failed=has_failed,
                waits=tuple(attempt.waits),
            )
        )
        self._served = dict(self._scheduler.fairness.tenants())
        self._scheduler.finish(sequence)
        del self._tries[sequence]
        self._waits.learn(sequence, by_itself=is_whole and not attempt.entry.is_runaway)
        self._ask_next(attempt.client)

    def _counts(self) -> Counts:
        return Counts(
            pauses=self._scheduler.num_pauses,
            swaps=self._scheduler.residency.num_swaps,
            swapped_bytes=self._moved_tokens * KV_BYTES_PER_TOKEN,
            recomputed_tokens=self._recomputed_tokens,
            peak_paused=self._peak_paused,
            peak_pages=self._peak_pages,
            tenant_tokens=self._shared_tokens,
        )


def _settings(arm: Arm) -> EngineSettings:
    page_size = max(1, PAGE_TOKENS // arm.grain)
    longest = _in_grains(PROMPT_TOKENS, arm.grain) + _in_grains(RUNAWAY_TOKENS, arm.grain)
    kv_tokens = NUM_CLIENTS * longest
    if arm.config.kv_cache_tokens is not None:
        kv_tokens = max(longest, _in_grains(arm.config.kv_cache_tokens, arm.grain))
    return EngineSettings(
        running_slots=arm.config.running_slots,
        context_length=longest,
        num_pages=-(-kv_tokens // page_size),
        num_tokens=1,
        detects_runaways=False,
        page_size=page_size,
        prefix_caching=False,
        schedule=arm.schedule,
        host_pages=HOST_KV_TOKENS // arm.grain // page_size,
    )


def _in_grains(tokens: int, grain: int) -> int:
    return max(1, round(tokens / grain))
