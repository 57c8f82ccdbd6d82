"""What is replayed under the virtual clock: the arms, and three scenes that ask one question each.

In: nothing but seeds. Out: replays, and numbers in seconds or as ratios. The pace is the first report's: 32,767 tokens
in 550.7 s, and half a second of prefill.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from fairness_answers import Answer, Pace, percentile
from fairness_replay import Arm, Replay, run_replay
from fairness_trace import (
    PROMPT_TOKENS,
    RUNAWAY_TOKENS,
    SDK_TIMEOUT_SECONDS,
    TWO_KEYS,
    Entry,
    innocent,
    seed_trace,
    without_runaways,
)
from plimsoll_runtime.contract.config import RuntimeConfig, Scheduling

SEED_PACE: Final = Pace(tokens_per_second=59.5, prefill_seconds=0.5)
CUT_SECONDS: Final = SDK_TIMEOUT_SECONDS * 0.975
"""When a server that knows of the client's timeout ends a plain answer."""

SHORT_TOKENS: Final = 858
LONG_RUN_TOKENS: Final = 9_000
"""So much of a runaway is enough where every single token is simulated: it is background from 4,096 on."""


def replay_arms(slots: int) -> dict[str, Arm]:
    """By name. The floor is replayed without runaways."""
    patient = {preset: _config(preset, slots) for preset in ("fifo", "fair", "interactive")}
    one_context = RuntimeConfig(
        model="/none", running_slots=slots, kv_cache_tokens=slots * (RUNAWAY_TOKENS + PROMPT_TOKENS)
    )
    arms = [
        Arm("floor", patient["fifo"]),
        *(Arm(preset, config) for preset, config in patient.items()),
        Arm("fair, 1 context a slot", one_context),
        Arm("fifo, SDK timeouts", patient["fifo"], timeout_seconds=SDK_TIMEOUT_SECONDS),
        Arm("fair, SDK timeouts", patient["fair"], timeout_seconds=SDK_TIMEOUT_SECONDS, deadline_seconds=CUT_SECONDS),
        Arm("fair, two keys", patient["fair"], tenants=TWO_KEYS),
    ]
    return {arm.name: arm for arm in arms}


def play_arms(seed: int, arms: Mapping[str, Arm], pace: Pace = SEED_PACE) -> dict[str, Replay]:
    """Each arm's replay of the seed's trace."""
    traces = {name: seed_trace(seed, tenants=arm.tenants) for name, arm in arms.items()}
    return {
        name: run_replay(without_runaways(trace) if name == "floor" else trace, arms[name], pace)
        for name, trace in traces.items()
    }


def lone_short_seconds(preset: Scheduling, runaway_has_tokens: int) -> float:
    """Time to the first token of one short request behind a runaway that has written so many, with one slot."""
    grain = 1 if runaway_has_tokens > 0 and preset != "fifo" else 16
    length = LONG_RUN_TOKENS if grain == 1 else RUNAWAY_TOKENS
    runaway, short = Entry(0, length, is_runaway=True, client=0), Entry(1, SHORT_TOKENS)
    arrival = SEED_PACE.own_seconds(runaway_has_tokens)
    replay = run_replay([runaway], Arm("lone", _config(preset, 1), grain=grain), SEED_PACE, late=[(arrival, short)])
    return next(answer.first_token - answer.sent for answer in replay.answers if answer.entry is short)


def lone_short_steps(preset: Scheduling) -> float:
    """The same behind a runaway in the background, in steps of one token beyond its own prefill."""
    seconds = lone_short_seconds(preset, LONG_RUN_TOKENS * 2 // 3) - SEED_PACE.prefill_seconds
    return seconds * SEED_PACE.tokens_per_second


def innocent_share(seed: int, grain: int = 16) -> tuple[float, Replay]:
    """With two keys: p99 of the innocent tenant over its p99 alone on a machine half as fast, and the replay."""
    trace = seed_trace(seed, tenants=TWO_KEYS)
    arm = Arm("fair, two keys", _config("fair", 1), tenants=TWO_KEYS, grain=grain)
    replay = run_replay(trace, arm, SEED_PACE)
    half = Pace(SEED_PACE.tokens_per_second / 2, SEED_PACE.prefill_seconds * 2)
    alone = run_replay(innocent(trace), arm, half)
    theirs = [answer for answer in replay.answers if answer.tenant == TWO_KEYS[0]]
    return _p99(theirs) / _p99(alone.answers), replay


def normal_latencies(answers: Sequence[Answer]) -> list[float]:
    """Seconds from the request to the end of each answer that is no runaway."""
    return [answer.latency for answer in answers if not answer.entry.is_runaway]


def _p99(answers: Sequence[Answer]) -> float:
    return percentile([answer.latency for answer in answers], 99)


def _config(preset: Scheduling, slots: int) -> RuntimeConfig:
    return RuntimeConfig(model="/none", running_slots=slots, scheduling=preset)
