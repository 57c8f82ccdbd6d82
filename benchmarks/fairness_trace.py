"""The first report's own case as a list of work: 200 answers, four clients without think time, three runaways.

Owns lengths and who asks. In: a seed, and by how much all lengths are divided. Out: `Entry`s, and a `Desk` that hands
them to clients. Lengths are lognormal and drawn by `random.Random(seed)`, so every run and every machine has the same.
"""

import math
import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

NUM_ENTRIES, NUM_CLIENTS = 200, 4
MEDIAN_TOKENS, SIGMA, SHORTEST_TOKENS, LONGEST_TOKENS = 858, 0.55, 60, 4000
RUNAWAYS = frozenset({71, 122, 183})
RUNAWAY_TOKENS = 32_767
PROMPT_TOKENS = 480
DEFAULT_OUTPUT_TOKENS = 4096
"""D of the server in the report: what a request gets that names no limit."""

SDK_TIMEOUT_SECONDS, SDK_RETRIES = 600.0, 2
"""What the SDKs of OpenAI and Anthropic do by default."""

SEEDS = (7, 1, 2, 3, 4, 5)
ONE_KEY, TWO_KEYS = ("",) * NUM_CLIENTS, ("innocent",) * (NUM_CLIENTS - 1) + ("owner",)
"""The tenant of each client. With two keys the last client has one of its own, and owns the runaways."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One answer of exactly `output_tokens`; `client` asks for it, or whoever is free first."""

    number: int
    output_tokens: int
    is_runaway: bool = False
    client: int | None = None


class Desk:
    """Gives each client its next entry, in order. With two keys the last client has its own entries and no others."""

    def __init__(self, entries: Iterable[Entry], tenants: Sequence[str] = ONE_KEY) -> None:
        self._sharing = NUM_CLIENTS - 1 if tenants == TWO_KEYS else NUM_CLIENTS
        self._shared: deque[Entry] = deque()
        self._own: dict[int, deque[Entry]] = {client: deque() for client in range(NUM_CLIENTS)}
        for entry in entries:
            line = self._shared if entry.client is None else self._own[entry.client]
            line.append(entry)

    def next_for(self, client: int) -> Entry | None:
        """None when there is nothing left for this client."""
        for line in (self._own[client], self._shared if client < self._sharing else deque[Entry]()):
            if line:
                return line.popleft()
        return None


def seed_trace(seed: int, divide: int = 1, tenants: Sequence[str] = ONE_KEY) -> list[Entry]:
    """The entries. With two keys the last client has each fourth one and the runaways, the others share the rest."""
    draw = random.Random(seed)
    lengths = [_length(MEDIAN_TOKENS * math.exp(SIGMA * draw.gauss(0, 1))) for _ in range(NUM_ENTRIES)]
    entries = []
    for number, length in enumerate(lengths):
        is_runaway = number in RUNAWAYS
        tokens = RUNAWAY_TOKENS if is_runaway else length
        is_owners = is_runaway or number % NUM_CLIENTS == NUM_CLIENTS - 1
        owner = NUM_CLIENTS - 1 if tenants == TWO_KEYS and is_owners else None
        entries.append(Entry(number, max(1, round(tokens / divide)), is_runaway, owner))
    return entries


def without_runaways(entries: Sequence[Entry]) -> list[Entry]:
    """The floor: the same work where those three write as much as anybody."""
    divide = RUNAWAY_TOKENS / max(entry.output_tokens for entry in entries)
    tokens = max(1, round(MEDIAN_TOKENS / divide))
    return [replace(entry, output_tokens=tokens) if entry.is_runaway else entry for entry in entries]


def innocent(entries: Iterable[Entry]) -> list[Entry]:
    """With two keys, what the other tenant asks for."""
    return [entry for entry in entries if entry.client is None]


def _length(tokens: float) -> int:
    return min(LONGEST_TOKENS, max(SHORTEST_TOKENS, int(tokens)))
