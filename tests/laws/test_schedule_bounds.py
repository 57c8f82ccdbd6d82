"""What the schedule promises in numbers: first come first served, who waits how long, and who gets what share.

A virtual clock counts steps; a step gives one token to each sequence that has a slot. Quantum 4, foreground up to 8
tokens, weights 7:1, unless a test says otherwise. The bounds are those of fairness.py.
"""

import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from doubles.virtual_run import FAIR, VirtualRun

FIFO: dict[str, Any] = {}
INTERACTIVE: dict[str, Any] = {**FAIR, "thresholds": (1, 4, 8), "weights": (8, 4, 2, 1)}
QUANTUM = FAIR["quantum_tokens"]
BORDER = FAIR["thresholds"][0]
JOBS = st.lists(st.tuples(st.integers(1, 20), st.integers(1, BORDER), st.integers(0, 6)), min_size=1, max_size=12)


def played(schedule: dict[str, Any], jobs: list[tuple[int, int, int]], **place: Any) -> VirtualRun:
    """Jobs of (prompt tokens, output tokens, steps until the next one comes)."""
    run = VirtualRun(schedule, **place)
    for index, (prompt_tokens, output_tokens, steps) in enumerate(jobs):
        run.submit(f"r{index:02}", prompt_tokens, output_tokens)
        for _ in range(steps):
            run.step()
    run.finish()
    return run


@settings(max_examples=40, deadline=None)
@given(jobs=JOBS, slots=st.integers(1, 4), step_tokens=st.sampled_from([5, 64]))
# A prompt of one token was taken for one that decodes, and began before the prompt ahead of it.
@example(jobs=[*[(1, 1, 0)] * 5, (18, 1, 0), (2, 1, 0), (1, 1, 0)], slots=3, step_tokens=5)
def test_with_nobody_beyond_the_border_the_order_is_that_of_arrival(
    jobs: list[tuple[int, int, int]], slots: int, step_tokens: int
) -> None:
    place = {"running_slots": slots, "step_tokens": step_tokens}
    fair, fifo = played(FAIR, jobs, **place), played(FIFO, jobs, **place)
    assert fair.trace == fifo.trace
    assert fair.started == sorted(fair.started)
    assert fair.scheduler.num_pauses == 0


@settings(max_examples=30, deadline=None)
@given(prompt_tokens=st.integers(1, 90), output_tokens=st.integers(1, 60), slots=st.integers(1, 3))
def test_alone_every_preset_is_the_same(prompt_tokens: int, output_tokens: int, slots: int) -> None:
    jobs = [(prompt_tokens, output_tokens, 0)]
    traces = [played(schedule, jobs, running_slots=slots).trace for schedule in (FAIR, INTERACTIVE, FIFO)]
    assert traces[0] == traces[1] == traces[2]


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("schedule", [FAIR, INTERACTIVE], ids=["fair", "interactive"])
@pytest.mark.parametrize("warm_up", [20, 33, 61])
def test_a_short_behind_runaways_waits_for_its_own_prompt_and_two_steps(
    slots: int, schedule: dict[str, Any], warm_up: int
) -> None:
    """B20: one answer of 32,767 tokens held the only slot, and whoever came behind it waited 8.5 minutes."""
    run = VirtualRun(schedule, running_slots=slots)
    for index in range(slots + 1):
        run.submit(f"runaway {index}", output_tokens=400)
    for _ in range(warm_up):
        run.step()
    run.submit("short", prompt_tokens=200, output_tokens=5)
    waited = 0
    while run.written["short", 0] == 0:
        run.step()
        waited += 1
    # The prompt takes four steps of 64 tokens, and a little less fits beside those that decode.
    assert waited <= 4 + 2


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 90), min_size=2, max_size=8),
    schedule=st.sampled_from([FAIR, INTERACTIVE, {**FAIR, "max_wait_seconds": 15.0}]),
)
def test_slicing_takes_no_step_longer(lengths: list[int], schedule: dict[str, Any]) -> None:
    """With one slot and pages for all, a step is a token, whoever has it."""
    jobs = [(1, length, 0) for length in lengths]
    assert len(played(schedule, jobs).trace) == len(played(FIFO, jobs).trace) == sum(lengths)


@settings(max_examples=25, deadline=None)
@given(runaways=st.integers(1, 4), slots=st.integers(1, 3), weights=st.sampled_from([(7, 1), (3, 1), (2, 2)]))
def test_the_background_is_served_within_its_bound(runaways: int, slots: int, weights: tuple[int, int]) -> None:
    """However many shorts come: after k (1 + W / w) quanta of the tenant's tokens it is one's turn again."""
    run = VirtualRun({**FAIR, "weights": weights}, running_slots=slots)
    for index in range(runaways):
        run.submit(f"runaway {index}", output_tokens=300)
    for _ in range(20 * runaways):
        run.step()
    bound = runaways * (1 + weights[0] / weights[1]) * QUANTUM + slots
    since = dict.fromkeys((f"runaway {index}" for index in range(runaways)), 0)
    for number in range(600):
        while sum(name.startswith("short") for name in run.alive) < slots + 2:
            run.submit(f"short {number} {len(run.alive)}", output_tokens=BORDER)
        run.step()
        served = {name for name, *_ in run.trace[-1]}
        since = {
            name: 0 if name in served else tokens + len(served) for name, tokens in since.items() if name in run.alive
        }
        assert max(since.values(), default=0) <= bound


@pytest.mark.parametrize("slots", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("schedule", "shares"),
    [(FAIR, [7, 1]), ({**FAIR, "weights": (2, 3)}, [2, 3]), (INTERACTIVE, [8, 4, 2, 1])],
    ids=["7:1", "2:3", "8:4:2:1"],
)
def test_levels_that_all_want_more_get_what_their_weights_say(
    slots: int, schedule: dict[str, Any], shares: list[int]
) -> None:
    run = VirtualRun(schedule, running_slots=slots, context_length=4000, num_pages=40_000)
    for index in range(slots + 2):
        run.submit(f"runaway {index}", output_tokens=3000)
    for number in range(1500):
        while sum(name.startswith("short") for name in run.alive) < 3 * slots:
            run.submit(f"short {number} {len(run.alive)}", output_tokens=BORDER)
        run.step()
    before = list(run.scheduler.fairness.level_tokens)
    for number in range(1500, 2700):
        while sum(name.startswith("short") for name in run.alive) < 3 * slots:
            run.submit(f"short {number} {len(run.alive)}", output_tokens=BORDER)
        run.step()
    tokens = [now - then for now, then in zip(run.scheduler.fairness.level_tokens, before, strict=True)]
    # Of more than two levels the middle ones are empty at times, and what they leave is the others'.
    assert tokens[-1] / sum(tokens) >= 0.85 * shares[-1] / sum(shares)
    if len(shares) == 2:
        assert tokens[-1] / sum(tokens) == pytest.approx(shares[-1] / sum(shares), rel=0.1)


@settings(max_examples=25, deadline=None)
@given(
    slots=st.integers(1, 4),
    weights=st.sampled_from([(1, 1), (3, 1), (1, 10)]),
    lengths=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    prompt_tokens=st.sampled_from([1, 30]),
    backlog=st.tuples(st.integers(5, 9), st.integers(5, 9)),
)
@example(slots=3, weights=(1, 10), lengths=(11, 3), prompt_tokens=30, backlog=(5, 5))
def test_two_tenants_that_both_wait_stay_together(
    slots: int, weights: tuple[int, int], lengths: tuple[int, int], prompt_tokens: int, backlog: tuple[int, int]
) -> None:
    """VTC's bound with a turn in place of a whole answer: an answer of 32,767 tokens put a tenant that far ahead."""
    run = VirtualRun(running_slots=slots, step_tokens=max(16, slots * prompt_tokens))
    names = ("a", "b")
    bound = 2 * (run.settings.step_budget_tokens + 2 * slots * QUANTUM)
    for number in range(500):
        for name, weight, length, want in zip(names, weights, lengths, backlog, strict=True):
            while sum(other.startswith(name) for other in run.alive) < want + slots:
                values = {"tenant": name, "tenant_weight": weight}
                run.submit(f"{name} {number} {len(run.alive)}", prompt_tokens, length, **values)
        run.step()
        served = dict(run.scheduler.fairness.tenants())
        paid = [served[name] / weight for name, weight in zip(names, weights, strict=True)]
        assert abs(paid[0] - paid[1]) <= bound


def test_a_tenant_with_one_short_answer_is_not_behind_a_flood() -> None:
    run = VirtualRun(running_slots=2)
    for index in range(20):
        run.submit(f"flood {index}", output_tokens=BORDER, tenant="flood")
    for _ in range(9):
        run.step()
    run.submit("innocent", output_tokens=2, tenant="innocent")
    for _ in range(2 + QUANTUM):
        run.step()
    assert "innocent" not in run.alive


def test_a_key_that_was_away_is_owed_nothing() -> None:
    """A tenant that comes after an hour does not have the slots for an hour."""
    run = VirtualRun(running_slots=1)
    run.submit("new before", output_tokens=1, tenant="new")
    for index in range(40):
        run.submit(f"old {index}", output_tokens=BORDER, tenant="old")
    for _ in range(120):
        run.step()
    for index in range(40):
        run.submit(f"new {index}", output_tokens=BORDER, tenant="new")
    start = len(run.trace)
    for _ in range(100):
        run.step()
    tokens = sum(chunk[0].startswith("new") for step in run.trace[start:] for chunk in step)
    assert tokens == pytest.approx(50, abs=2 * QUANTUM)


@pytest.mark.parametrize("runaways", [1, 3])
def test_who_was_stopped_long_ago_is_next(runaways: int) -> None:
    """Weights of 1000:1 are a starvation in all but name; age ends it, and leaves the young at least half."""
    run = VirtualRun({**FAIR, "weights": (1000, 1), "max_wait_seconds": 50.0}, running_slots=1)
    for index in range(runaways):
        run.submit(f"runaway {index}", output_tokens=200)
    for _ in range(10 * runaways):
        run.step()
    silent = 0
    for number in range(1000):
        while sum(name.startswith("short") for name in run.alive) < 3:
            run.submit(f"short {number} {len(run.alive)}", output_tokens=BORDER)
        run.step()
        silent = 0 if any(name.startswith("runaway") for name, *_ in run.trace[-1]) else silent + 1
        assert silent <= 50 + 2 * QUANTUM or not any(name.startswith("runaway") for name in run.alive)
    shorts = sum(name.startswith("short") for step in run.trace for name, *_ in step)
    assert shorts >= 500


def test_a_demoted_sequence_is_background_at_once() -> None:
    run = VirtualRun(running_slots=1)
    run.submit("repeats", output_tokens=BORDER)
    run.submit("next", output_tokens=3)
    run.step()
    run.alive["repeats"][0].is_demoted = True
    for _ in range(3):
        run.step()
    assert "next" not in run.alive
    assert run.written["repeats", 0] == 1


def test_fifo_keeps_a_slot_to_the_end_and_lets_tenants_take_turns_for_free_ones() -> None:
    run = VirtualRun(FIFO, running_slots=1)
    for index in range(3):
        run.submit(f"a{index}", output_tokens=60, tenant="a")
    run.submit("b0", output_tokens=3, tenant="b")
    run.finish()
    assert [name for name, _ in run.started] == ["a0", "b0", "a1", "a2"]
    assert run.scheduler.num_pauses == 0


def test_a_weight_counts_where_each_tenant_has_one_answer() -> None:
    """Before, the one that had the slot did not wait, was lifted to the other, and both got the same."""
    run = VirtualRun(running_slots=1)
    for tenant, weight in (("light", 100), ("heavy", 900)):
        run.submit(tenant, output_tokens=400, tenant=tenant, tenant_weight=weight)
    for _ in range(400):
        run.step()
    assert run.written["heavy", 0] == pytest.approx(360, abs=4 * QUANTUM)


HOSTS = [0, 64, 128, 256]
ONE_CONTEXT: dict[str, Any] = {"running_slots": 1, "context_length": 512, "num_pages": 128}


@pytest.mark.parametrize("host_pages", HOSTS)
def test_turns_of_the_background_make_nobody_lose_its_pages(host_pages: int) -> None:
    """Each turn made the one that had the only slot lose a whole context, although it could have gone on."""
    run = VirtualRun(**ONE_CONTEXT, host_pages=host_pages)
    for index in range(4):
        run.submit(f"runaway {index}", output_tokens=480)
    run.finish()
    computed = sum(num_tokens for step in run.trace for *_, num_tokens in step)
    # Three may lose theirs once, to one that runs and grows: it was 19 to 55 times the work.
    assert computed < 2 * 4 * 480


@pytest.mark.parametrize("host_pages", HOSTS)
@pytest.mark.parametrize("max_wait", [1e9, 100.0])
def test_a_short_does_not_wait_for_a_background_that_lost_its_pages(host_pages: int, max_wait: float) -> None:
    """Where the host is full the runaways wait for an end or for their age; a short waits as if pages were for all."""
    run = VirtualRun({**FAIR, "max_wait_seconds": max_wait}, **ONE_CONTEXT, host_pages=host_pages)
    for index in range(4):
        run.submit(f"runaway {index}", output_tokens=480)
    for _ in range(4 * BORDER + 4):
        run.step()
    longest = 0
    for number in range(150):
        for _ in range(7):
            run.step()
        name, begun = f"short {number}", len(run.trace)
        run.submit(name, prompt_tokens=8, output_tokens=2)
        while name in run.alive:
            run.step()
        longest = max(longest, len(run.trace) - begun)
    # Its own two steps, a quantum that is owed, and the chunks of a context that is computed again for it.
    assert longest <= 2 + QUANTUM + 512 // 64 + 1
    run.finish()


def instructions(run: VirtualRun) -> int:
    """How many instructions of Python one step of the scheduler takes: the same on every machine."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run.step()
    finally:
        sys.settrace(before)
    return count


def test_keys_that_were_seen_once_cost_a_step_nothing() -> None:
    """Before, every chunk walked over up to 1,024 tenants that had left."""
    counts: list[int] = []
    for num_gone in (0, 300):
        run = VirtualRun(running_slots=2)
        for index in range(num_gone):
            run.submit(f"gone {index}", output_tokens=1, tenant=f"t{index}")
            run.finish()
        for name in ("a", "b", "c"):
            run.submit(name, output_tokens=20, tenant=name)
        run.step()
        counts.append(instructions(run))
    assert counts[1] < 1.2 * counts[0]


def test_a_key_that_left_long_ago_is_forgotten_and_one_that_just_left_is_not() -> None:
    run = VirtualRun(running_slots=1)
    for index in range(1100):
        run.submit(f"r{index}", output_tokens=1, tenant=f"t{index}")
        run.finish()
    for index in (0, 1099):
        run.submit(f"again {index}", output_tokens=1, tenant=f"t{index}")
    served = dict(run.scheduler.fairness.tenants())
    assert (served["t0"], served["t1099"]) == (0.0, 3.0)


TIGHT: dict[str, Any] = {
    "running_slots": 2,
    "context_length": 48,
    "num_pages": 12,
    "headroom_tokens": 0,
    "prefix_caching": False,
}


@pytest.mark.parametrize("schedule", [FIFO, {"quantum_tokens": 3, "max_wait_seconds": 1e9}], ids=["fifo", "one level"])
def test_a_choice_does_not_hold_up_the_one_that_computes_its_prompt(schedule: dict[str, Any]) -> None:
    """Evicted in the middle of the prompt, it stood behind its siblings, who waited for it: nobody ran ever again."""
    run = VirtualRun(schedule, **TIGHT, step_tokens=4)
    for index, (output_tokens, prompt_tokens, steps) in enumerate([(8, 18, 3), (9, 25, 6), (3, 22, 3)]):
        run.submit(f"r{index}", prompt_tokens, output_tokens, num_choices=3)
        for _ in range(steps):
            run.step()
    run.finish(most_steps=500)


def test_fifo_takes_back_who_lost_its_pages_where_it_arrived() -> None:
    """Before, behind all that had come later."""
    run = VirtualRun(FIFO, **TIGHT)
    for index in range(4):
        run.submit(f"r{index}", output_tokens=40)
    run.finish()
    chunks = [(number, name, first) for number, step in enumerate(run.trace) for name, _, first, _ in step]
    begun = {index: [number for number, name, first in chunks if (name, first) == (f"r{index}", 0)] for index in (1, 2)}
    assert begun[1][1] <= begun[2][0]
