"""What `make bench-cpu` must reach: every figure with its yardstick, floor and goal, and how samples become a row.

Owns the list. A figure's value is what its floor and goal are said of: often a ratio of ours to a yardstick, taken
within each round, of which the median counts; so a slow minute of the machine falls on both sides of a ratio.
"""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from table import Figure

Samples = Mapping[str, Mapping[str, list[float]]]
"""Figure -> what was measured -> one value per round."""

OURS, LLAMA, TRANSFORMERS, BARE = "plimsoll", "llama.cpp", "transformers", "bare FastAPI"
COLUMNS = (OURS, LLAMA, TRANSFORMERS, BARE)
AT_100, AT_4000 = "plimsoll at 100", "plimsoll at 4,000"
MEMORY_ALLOWANCE_MB = 300.0


@dataclass(frozen=True)
class Aim:
    """One figure. `value` of one round's numbers by column is what floor and goal are about; None: only reported."""

    key: str
    name: str
    unit: str
    value: Callable[[Mapping[str, float]], float] | None = None
    needs: tuple[str, ...] = (OURS,)
    floor: float | None = None
    goal: float | None = None
    less_is_better: bool = False

    def reaches(self, value: float, bound: float) -> bool:
        return value <= bound if self.less_is_better else value >= bound


def _ratio(above: str, below: str) -> Callable[[Mapping[str, float]], float]:
    return lambda numbers: numbers[above] / numbers[below]


def _memory(numbers: Mapping[str, float]) -> float:
    return numbers[OURS] / (numbers[LLAMA] + MEMORY_ALLOWANCE_MB)


def _ours(numbers: Mapping[str, float]) -> float:
    return numbers[OURS]


_WITH_LLAMA = (OURS, LLAMA)
AIMS = (
    Aim("single", "single stream", "tokens/s", _ratio(OURS, LLAMA), _WITH_LLAMA, 0.9, 1.3),
    Aim("streams-8", "8 streams together", "tokens/s", _ratio(OURS, LLAMA), _WITH_LLAMA, 1.5, 2.5),
    Aim("streams-16", "16 streams together", "tokens/s", _ratio(OURS, LLAMA), _WITH_LLAMA, 1.7, 3),
    Aim("prefill", "512-token prefill", "tokens/s", _ratio(OURS, LLAMA), _WITH_LLAMA, 1.7, 2.5),
    Aim("shared-prefix", "32 requests, 1,000-token prefix shared", "s", _ratio(LLAMA, OURS), _WITH_LLAMA, 2, 4),
    Aim("transformers", "8 streams, batch of 8", "tokens/s", _ratio(OURS, TRANSFORMERS), (OURS, TRANSFORMERS), 3, 6),
    Aim("memory", "resident, same cache, after 8 streams", "MB", _memory, _WITH_LLAMA, 1.2, 1.0, True),
    Aim("memory-small", "resident, context 2,048, one slot", "MB", _memory, _WITH_LLAMA, 1.2, 1.0, True),
    Aim("long-context", "decode at 4,000 tokens / at 100", "x", _ours, (OURS,), 0.6, 0.8),
    Aim("start", "ready after start, weights in page cache", "s", _ours, (OURS,), 3, 2, True),
    Aim("http-rate", "scripted model, 64 connections", "requests/s", _ours, (OURS,), 500, 1500),
    Aim("http-latency", "scripted model, added p50, 1 connection", "ms", _ours, (OURS,), 5, 2, True),
    Aim("loop-share", "event loop's share of a core, 8 streams", "%"),
)


def values(aim: Aim, samples: Samples) -> list[float]:
    """The value of each round in which all that it needs was measured."""
    columns = samples.get(aim.key, {})
    if aim.value is None or any(column not in columns for column in aim.needs):
        return []
    rounds = zip(*(columns[column] for column in aim.needs), strict=True)
    return [aim.value(dict(zip(aim.needs, numbers, strict=True))) for numbers in rounds]


def row(aim: Aim, samples: Samples) -> Figure:
    """Medians for people, the median value, and whether the floor is met."""
    medians = {column: statistics.median(numbers) for column, numbers in samples.get(aim.key, {}).items()}
    found = values(aim, samples)
    if not found or aim.floor is None or aim.goal is None:
        return Figure(aim.name, aim.unit, medians)
    value = statistics.median(found)
    word = "at most" if aim.less_is_better else "at least"
    return Figure(
        name=aim.name,
        unit=aim.unit,
        medians={**medians, "value": value},
        goal=f"{word} {aim.floor:,g}, goal {aim.goal:,g}",
        met=aim.reaches(value, aim.floor),
        goal_met=aim.reaches(value, aim.goal),
        floor=aim.floor,
        goal_value=aim.goal,
        less_is_better=aim.less_is_better,
    )
