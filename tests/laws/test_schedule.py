"""The laws of the schedule, on the scheduler alone under a virtual clock: nobody starves, nothing is lost or doubled.

`Slots` is a random history of arrivals, steps, cancels, a host memory that fails, jumps of the clock and new keys, in a
pool that is often too small; 400 of up to 40 calls make more than 10,000. The bounds are in test_schedule_bounds.py.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from doubles.virtual_run import FAIR, VirtualRun

CONTEXT = 48
AMPLE = 400
SCHEDULES: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {},
        {**FAIR, "max_wait_seconds": 40.0},
        {**FAIR, "by_tenant": False},
        {"thresholds": (1, 4, 8), "weights": (8, 4, 2, 1), "quantum_tokens": 2, "max_wait_seconds": 30.0},
        {"thresholds": (3, 20), "weights": (1, 5, 3), "quantum_tokens": 1, "max_wait_seconds": 5.0},
    ]
)
PLACES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "running_slots": st.integers(1, 4),
        "num_pages": st.sampled_from([12, 14, 20, AMPLE]),
        "host_pages": st.sampled_from([0, 6, 30, 1000]),
        "step_tokens": st.sampled_from([4, 9, 64]),
        "headroom_tokens": st.integers(0, 5),
        "prefix_caching": st.booleans(),
        "num_states": st.sampled_from([0, 0, 4, 5, 9, AMPLE]),
        "state_pages": st.integers(0, 3),
    }
)


class Slots(RuleBasedStateMachine):
    """`history` has every call, so that the same history can be run again."""

    @initialize(schedule=SCHEDULES, place=PLACES)
    def start(self, schedule: dict[str, Any], place: dict[str, Any]) -> None:
        self.made = (schedule, {**place, "context_length": CONTEXT})
        self.run = VirtualRun(schedule, checks_pages=True, **self.made[1])
        self.history: list[tuple[str, Any]] = []
        self.expected: dict[tuple[str, int], int] = {}
        self.weights = {"": 1}

    @rule(
        prompt_tokens=st.integers(1, 30),
        output_tokens=st.integers(1, 40),
        num_choices=st.sampled_from([1, 1, 1, 2, 3]),
        data=st.data(),
    )
    def arrive(self, prompt_tokens: int, output_tokens: int, num_choices: int, data: st.DataObject) -> None:
        output_tokens = min(output_tokens, CONTEXT - prompt_tokens)
        tenant = data.draw(st.sampled_from(sorted(self.weights)))
        values = {"num_choices": num_choices, "tenant": tenant, "tenant_weight": self.weights[tenant]}
        name = f"r{len(self.history)}"
        self.do("submit", (name, prompt_tokens, output_tokens, values))
        self.expected |= {(name, choice): output_tokens for choice in range(num_choices)}

    @rule(tenant=st.sampled_from(["", "a", "b"]), weight=st.sampled_from([1, 2, 10]))
    def change_key(self, tenant: str, weight: int) -> None:
        self.weights[tenant] = weight

    @rule(count=st.integers(1, 12))
    def tick(self, count: int) -> None:
        for _ in range(count):
            self.do("step", None)

    @rule(seconds=st.sampled_from([10.0, 100.0, 1e6]))
    def jump(self, seconds: float) -> None:
        self.do("jump", seconds)

    @rule(is_broken=st.booleans())
    def break_host(self, is_broken: bool) -> None:
        self.do("break", is_broken)

    @precondition(lambda self: self.run.alive)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.run.alive)))
        self.do("cancel", name)
        self.run.scheduler.check_integrity()
        present = {*self.run.scheduler.running, *self.run.scheduler.waiting()}
        assert not any(sequence.request.request_id == name for sequence in present)
        self.expected = {key: tokens for key, tokens in self.expected.items() if key[0] != name}

    def do(self, call: str, value: Any) -> None:
        self.history.append((call, value))
        perform(self.run, call, value)
        if call == "step":
            check_step(self.run)

    def teardown(self) -> None:
        if not hasattr(self, "run"):
            return
        steps_before = len(self.run.trace)
        self.run.finish()
        assert {key: self.run.written[key] for key in self.expected} == self.expected
        residency = self.run.scheduler.residency
        assert (residency.allocator.num_used, residency.host_pages_used) == (0, 0)
        again = VirtualRun(self.made[0], **self.made[1])
        for call, value in self.history:
            perform(again, call, value)
        assert again.trace == self.run.trace[:steps_before]


TestSlots = Slots.TestCase
TestSlots.settings = settings(max_examples=400, stateful_step_count=40, deadline=None)


def perform(run: VirtualRun, call: str, value: Any) -> None:
    match call:
        case "submit":
            name, prompt_tokens, output_tokens, values = value
            run.submit(name, prompt_tokens, output_tokens, **values)
        case "step":
            run.step()
        case "jump":
            run.now += value
        case "break":
            run.host_is_broken = value
        case "cancel":
            run.cancel(value)


def check_step(run: VirtualRun) -> None:
    """Somebody was served while somebody was here, and no slot idled but for pages, tokens of the step, or a sibling
    that computes the same prompt first."""
    chunks = run.trace[-1]
    tokens = sum(num_tokens for *_, num_tokens in chunks)
    assert len(chunks) <= run.settings.running_slots
    assert tokens <= run.settings.step_budget_tokens
    assert chunks or not run.alive
    if run.settings.num_pages == AMPLE and tokens < run.settings.step_budget_tokens:
        assert run.could_run == [] or any(not sequence.progress.prefilled for sequence in run.scheduler.waiting())
