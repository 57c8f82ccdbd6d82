"""What a measured engine is: something that answers prompts and says when each token came.

Owns the shapes that runs, servers and yardsticks share. Times are seconds since the prompts were sent.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class StreamTiming:
    """One answer: when its first and its last token came, and how many there were."""

    first_seconds: float
    last_seconds: float
    num_tokens: int


class Engine(Protocol):
    """A started engine with the weights loaded; `start_seconds` is from making its process to being ready."""

    name: str
    start_seconds: float

    def stream(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[StreamTiming]:
        """Greedy answers of exactly `num_tokens` to all prompts at once, or as near to that as the engine can."""
        ...

    def peak_resident_bytes(self) -> int: ...

    def stop(self) -> None: ...


def decode_rate(timings: Sequence[StreamTiming]) -> float:
    """Tokens per second of all streams together, counted from the first token of any to the last of all."""
    seconds = max(timing.last_seconds for timing in timings) - min(timing.first_seconds for timing in timings)
    return sum(timing.num_tokens - 1 for timing in timings) / seconds


def peak_resident_bytes(process_id: int) -> int:
    """The most memory that the process ever had resident, as the kernel counts it."""
    with open(f"/proc/{process_id}/status", encoding="utf-8") as status:
        line = next(line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def resident_bytes(process_id: int) -> int:
    """What the process has resident now, mapped files included, whoever else has them mapped too."""
    with open(f"/proc/{process_id}/smaps_rollup", encoding="utf-8") as rollup:
        line = next(line for line in rollup if line.startswith("Rss:"))
    return int(line.split()[1]) * 1024


def main_thread_seconds(process_id: int) -> float:
    """Processor time of the process's first thread so far; in our server that is the event loop's."""
    with open(f"/proc/{process_id}/task/{process_id}/stat", encoding="utf-8") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
