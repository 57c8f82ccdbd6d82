"""A schedule under a virtual clock: the scheduler alone, with made-up tokens and a host memory that only remembers.

Each step takes one second unless a test says otherwise. Sequences end when they have written their grant.
"""

from typing import Any

from doubles.admitted_requests import admitted
from plimsoll_runtime.admitted import AdmittedRequest
from plimsoll_runtime.engine.batch import Batch, Chunk, Move, StateCopy
from plimsoll_runtime.engine.scheduler import Scheduler
from plimsoll_runtime.engine.sequence import Sequence, split_request
from plimsoll_runtime.engine.settings import EngineSettings, Schedule

FAIR: dict[str, Any] = {"thresholds": (8,), "weights": (7, 1), "quantum_tokens": 4, "max_wait_seconds": 1e9}
PLACE: dict[str, Any] = {
    "running_slots": 1,
    "context_length": 512,
    "num_pages": 4096,
    "num_tokens": 1000,
    "detects_runaways": False,
    "page_size": 4,
    "step_tokens": 64,
    "headroom_tokens": 4,
}


class VirtualRun:
    """`written` has for each request and choice how many tokens it wrote; `trace` what every step computed.

    `could_run` are those of the last step who had no slot, and needed nothing of a sibling, while a slot was free.
    """

    def __init__(self, schedule: dict[str, Any] | None = None, checks_pages: bool = False, **values: Any) -> None:
        self.checks_pages = checks_pages
        self.settings = EngineSettings(
            **{**PLACE, **values}, schedule=Schedule(**(FAIR if schedule is None else schedule))
        )
        self.scheduler = Scheduler(self.settings)
        self.now = 0.0
        self.alive: dict[str, list[Sequence]] = {}
        self.written: dict[tuple[str, int], int] = {}
        self.started: list[tuple[str, int]] = []
        self.trace: list[tuple[tuple[str, int, int, int], ...]] = []
        self.could_run: list[Sequence] = []
        self.host_is_broken = False
        self._on_host: dict[Sequence, int] = {}

    def submit(self, request_id: str, prompt_tokens: int = 1, output_tokens: int = 4, **values: Any) -> None:
        """Prompts of different requests have no page in common."""
        first = len(self.written) % 900
        prompt = [first, *range(prompt_tokens - 1)]
        values = {"max_output_tokens": output_tokens, "context_length": self.settings.context_length, **values}
        self.take(admitted(request_id, prompt, **values))

    def take(self, request: AdmittedRequest) -> None:
        sequences = split_request(request, self.settings)
        self.alive[request.request_id] = sequences
        self.written |= {(request.request_id, sequence.choice): 0 for sequence in sequences}
        self.scheduler.enqueue(sequences, self.now)

    def cancel(self, request_id: str) -> None:
        for sequence in self.alive.pop(request_id):
            self.scheduler.finish(sequence)
            self._on_host.pop(sequence, None)

    def step(self, seconds: float = 1.0) -> Batch:
        """One step: plan, move, compute, sample."""
        batch = self.scheduler.plan(self.now)
        for move in batch.moves:
            if isinstance(move, StateCopy):
                assert move.source != move.target
            else:
                self._move(move)
        if self.checks_pages:
            self.scheduler.check_integrity()
        has_free_slot = len(self.scheduler.running) < self.settings.running_slots
        self.could_run = [other for other in self.scheduler.waiting() if _is_led(other)] if has_free_slot else []
        self.scheduler.commit(batch)
        self.now += seconds
        self.trace.append(tuple(_in_short(chunk) for chunk in batch.chunks))
        for chunk in sorted(batch.chunks, key=lambda chunk: chunk.sequence.arrival_index):
            self._note_start(chunk.sequence)
            if chunk.samples:
                self._sample(chunk.sequence)
        return batch

    def finish(self, most_steps: int = 20_000) -> None:
        """Until nobody is here."""
        for _ in range(most_steps):
            if not self.alive:
                return
            self.step()
        raise AssertionError(f"still here after {most_steps} steps: {list(self.alive)}")

    def _note_start(self, sequence: Sequence) -> None:
        name = (sequence.request.request_id, sequence.choice)
        if name not in self.started:
            self.started.append(name)

    def _sample(self, sequence: Sequence) -> None:
        sequence.append(7)
        request_id = sequence.request.request_id
        self.written[request_id, sequence.choice] += 1
        if sequence.remaining_tokens == 0:
            self.scheduler.finish(sequence)
            self.alive[request_id].remove(sequence)
            if not self.alive[request_id]:
                del self.alive[request_id]

    def _move(self, move: Move) -> None:
        """What comes back must be what was taken: the same tokens of the same sequence."""
        if move.direction == "out":
            if self.host_is_broken:
                self.scheduler.lose(move.sequence)
            else:
                self._on_host[move.sequence] = len(move.pages)
        else:
            assert self._on_host.pop(move.sequence) == len(move.pages)


def _is_led(sequence: Sequence) -> bool:
    return sequence.progress.prefilled or sequence.progress.leader in {None, sequence}


def _in_short(chunk: Chunk) -> tuple[str, int, int, int]:
    return chunk.sequence.request.request_id, chunk.sequence.choice, chunk.first_position, chunk.num_tokens
