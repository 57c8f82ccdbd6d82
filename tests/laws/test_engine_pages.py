"""The law of pages in use: whatever is shared, chunked, evicted or preempted, a sequence reads its own tokens.

The decoder's next token depends on every token that it reads back from the cache, so a stale or foreign page gives
another answer (B24), and a neighbour's settings or prompt cannot leak (B26).
"""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.admitted_requests import admitted
from doubles.engine_runs import VOCAB_SIZE, EngineRun
from doubles.kv_caches import float_cache
from doubles.paged_memory import PagedMemory, continuation
from plimsoll_runtime.engine.host_kv import HostKV
from plimsoll_runtime.engine.runner import ModelRunner
from plimsoll_runtime.engine.settings import Schedule

CONTEXT = 24
BEGINNINGS = st.sampled_from([[], [1, 2, 3], [1, 2, 3, 4, 5, 6], [1, 2, 9, 4, 5, 6]])
REQUESTS = st.fixed_dictionaries(
    {
        "prompt": st.tuples(BEGINNINGS, st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=9)),
        "num_choices": st.integers(1, 3),
        "tenant": st.sampled_from(["", "other"]),
        "temperature": st.sampled_from([0.0, 1.0]),
        "prompt_logprobs": st.sampled_from([None, None, None, 0]),
        "wait_steps": st.integers(0, 4),
    }
)
ENGINES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "page_size": st.integers(1, 5),
        "spare_pages": st.integers(0, 6),
        "running_slots": st.integers(1, 4),
        "step_tokens": st.integers(1, 30),
        "headroom_tokens": st.integers(0, 4),
        "prefix_caching": st.booleans(),
        "spare_states": st.sampled_from([None, None, 0, 1, 3, 20]),
        "host_pages": st.sampled_from([0, 4, 12, 100]),
        "state_pages": st.integers(0, 3),
        "quantum_tokens": st.sampled_from([None, 1, 3]),
    }
)


def make_run(
    page_size: int,
    spare_pages: int,
    spare_states: int | None = None,
    quantum_tokens: int | None = None,
    **values: Any,
) -> EngineRun:
    """`spare_states`: beyond one for each slot; None for a decoder that keeps none. A quantum makes sequences pause."""
    num_pages = -(-CONTEXT // page_size) + spare_pages
    num_states = 0 if spare_states is None else values["running_slots"] + spare_states
    cache = float_cache(num_pages, page_size, num_states=num_states)
    runner = ModelRunner(PagedMemory(VOCAB_SIZE), cache, page_size, "cpu")
    schedule = (
        Schedule(thresholds=(2,), weights=(2, 1), quantum_tokens=quantum_tokens) if quantum_tokens else Schedule()
    )
    values |= {"num_states": num_states, "schedule": schedule, "page_size": page_size, "num_pages": num_pages}
    return EngineRun(runner=runner, host=HostKV(cache, page_size), context_length=CONTEXT, **values)


@settings(max_examples=50, deadline=None)
@given(engine=ENGINES, requests=st.lists(REQUESTS, min_size=1, max_size=8))
def test_every_sequence_reads_its_own_tokens(engine: dict[str, Any], requests: list[dict[str, Any]]) -> None:
    run = make_run(**engine)
    prompts: dict[str, list[int]] = {}
    for index, values in enumerate(requests):
        beginning, rest = values.pop("prompt")
        wait_steps = values.pop("wait_steps")
        prompts[f"r{index}"] = [*beginning, *rest]
        run.engine.submit(admitted(f"r{index}", [*beginning, *rest], context_length=CONTEXT, **values))
        run.step(wait_steps)
    run.finish()
    for index, values in enumerate(requests):
        prompt = prompts[f"r{index}"]
        expected = continuation(prompt, CONTEXT - len(prompt), VOCAB_SIZE)
        for choice in range(values["num_choices"]):
            assert run.tokens(f"r{index}", choice) == expected


def test_sixteen_at_once_with_shared_beginnings_and_a_tiny_pool() -> None:
    """B24: many at once, of very different lengths, answered with text that belonged to another."""
    run = make_run(page_size=2, spare_pages=4, running_slots=4, step_tokens=5, headroom_tokens=1)
    prompts = [[*range(1, 1 + index % 7), index] for index in range(16)]
    for index, prompt in enumerate(prompts):
        run.engine.submit(admitted(f"r{index}", prompt, context_length=CONTEXT))
    run.finish()
    assert run.engine.load().counts.recomputes > 0
    for index, prompt in enumerate(prompts):
        assert run.tokens(f"r{index}") == continuation(prompt, CONTEXT - len(prompt), VOCAB_SIZE)
