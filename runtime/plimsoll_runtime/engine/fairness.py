"""Whose turn it is: tenants by what they were served, levels by what they are owed, then arrival.

Owns the lines of those that have no slot, and every number that decides who gets one. In: sequences that arrive, give
up a slot, were served, or leave. Out: a `Pick`: who gets the next slot, and from whom. It knows no pages, no tensors
and no clock but the times it is given. Ties end at the arrival, so the same history gives the same schedule.

**Tenants** are virtual counters (VTC, Sheng et al., OSDI 2024): a tenant pays for what it is served, 1 for a prompt
token, a tenth for a cached one, 2 for an output token, divided by its weight; the one that has paid least is next. A
counter moves only while somebody waits, and who lacks nothing saves next to nothing: a tenant that does not wait is
lifted to the least counter of those that do, less what a turn of that one costs. (Without that turn a weight would not
count where each tenant has one sequence: the one that has the slot does not wait.) A slot that was given stays for a
turn of one quantum before another tenant may take it, and what is promised so counts as paid. So two tenants that both
wait are never further apart than 2 x (tokens of one step + 2 x slots x quantum), in weighted tokens, as long as a step
has tokens for the prompts of all slots: what one tenant's prompts leave no tokens for, no slot idles for.

**Levels** are counters too, kept as their difference: `credit` is by how many tokens a level lags behind what its
weight says. The foreground is the shallowest level where a tenant has anybody; it gets every slot of the tenant that
is not owed. For each token of the foreground, a deeper level that waits earns its weight over the foreground's. When it
has earned a quantum, one of its sequences is owed a turn: it takes a slot, and nobody of the same tenant takes it back
before the quantum is over. What a turn did not use is given back. Credit is never more than a quantum for each sequence
of the level. No slot idles for it: a deeper level uses what the foreground leaves, until the foreground wants it.

Hence for one tenant whose deeper level (weight w) has k sequences, and foreground weight W: one of them is served again
after at most k x (1 + W / w) x quantum tokens of that tenant: with 7:1, one runaway and 128 tokens, 1,024. That wants
pages for it, or room on the host for whom it displaces; where both are full, its turn comes when one that runs ends, or
by age.

**Within a level:** level 0 is first come, first served, and who has a slot keeps it until it ends or leaves the level.
In the levels between, turns go to the oldest first: each of them has an end, so whoever waits comes to be the oldest,
and answers are done one after the other instead of all late. The last level has no end, so it goes round: after a turn
a sequence goes to the end of its line; one whose turn was cut short is the first.

**Age:** who was stopped `max_wait_seconds` ago is served next, for one turn, whatever the counters say; between two
such turns the others are served a quantum, so old age cannot shut out the young.

Without a quantum (the preset `fifo`) a slot is kept to the end, and only free slots are given: then, and while there is
one tenant with nobody beyond the first threshold, the order is that of arrival and nothing else.
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from plimsoll_runtime.engine.sequence import Sequence
from plimsoll_runtime.engine.settings import Schedule

PROMPT_COST, CACHED_COST, OUTPUT_COST = 1.0, 0.1, 2.0
REMEMBERED_TENANTS = 1024
"""Counters of tenants that have left are kept for so many: coming back under the same key clears no debt."""


@dataclass(slots=True, eq=False)
class Level:
    """`line`: those without a slot, the next one first. `num_sequences` counts those with a slot too."""

    weight: int
    line: list[Sequence] = field(default_factory=list)
    num_sequences: int = 0
    credit: float = 0.0


@dataclass(slots=True, eq=False)
class Tenant:
    """`counter` decides, `served` is the same without weights and pauses: what it was served in all."""

    name: str
    levels: tuple[Level, ...]
    weight: int = 1
    counter: float = 0.0
    served: float = 0.0
    num_sequences: int = 0

    @property
    def waits(self) -> bool:
        return any(level.line for level in self.levels)


@dataclass(frozen=True, slots=True)
class Pick:
    """`sequence` gets a slot: a free one, or that of `displaces`."""

    sequence: Sequence
    displaces: Sequence | None
    is_owed: bool = False
    is_aged: bool = False


class Fairness:
    """Decides and remembers. `running` is always handed in: who has a slot is the scheduler's."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._quantum = schedule.quantum_tokens
        self._present: OrderedDict[str, Tenant] = OrderedDict()
        self._away: OrderedDict[str, Tenant] = OrderedDict()
        self._stopped: dict[Sequence, None] = {}
        self._since_aged = float("inf")
        self.level_tokens = [0] * len(schedule.weights)

    def arrive(self, sequence: Sequence) -> None:
        """A new sequence, to the end of its tenant's first line."""
        name = self._name(sequence)
        if name not in self._present:
            tenant = self._away.pop(name, None) or Tenant(name, self._new_levels())
            counters = [other.counter for other in self._present.values()]
            tenant.counter = max(tenant.counter, min(counters, default=tenant.counter))
            self._present[name] = tenant
        self._present.move_to_end(name)
        tenant = self._present[name]
        tenant.weight = sequence.request.tenant_weight
        tenant.num_sequences += 1
        tenant.levels[0].num_sequences += 1
        self._put(sequence)

    def leave(self, sequence: Sequence) -> None:
        """It has ended; what its turn did not use goes back to its level."""
        tenant, level = self._place(sequence)
        if sequence.state != "running":
            level.line.remove(sequence)
            self._stopped.pop(sequence, None)
        self._end_turn(sequence)
        tenant.num_sequences -= 1
        level.num_sequences -= 1
        level.credit = min(level.credit, self._most_credit(level))
        if tenant.num_sequences == 0:
            self._away[tenant.name] = self._present.pop(tenant.name)
            if len(self._away) > REMEMBERED_TENANTS:
                self._away.popitem(last=False)

    def stop(self, sequence: Sequence) -> None:
        """It lost its slot; back into its line: where it arrived, or for a turn cut short in front, else at the end."""
        self._end_turn(sequence)
        self._stopped[sequence] = None
        self._put(sequence)

    def start(self, pick: Pick) -> None:
        """The pick is carried out: out of the line, into a turn. What an owed turn may use is paid at once."""
        sequence = pick.sequence
        _, level = self._place(sequence)
        level.line.remove(sequence)
        self._stopped.pop(sequence, None)
        if self._quantum is None:
            return
        if sequence.turn_left <= 0 or pick.is_owed:
            sequence.turn_left = OUTPUT_COST * self._quantum
        sequence.is_owed = pick.is_owed
        if pick.is_owed:
            level.credit = max(level.credit - self._quantum, -float(self._quantum))
        if pick.is_aged:
            self._since_aged = 0.0

    def settle(self, running: Items[Sequence]) -> None:
        """Before picks are made: levels as outputs are now, turns that are over, counters of who lacks nothing."""
        turn = OUTPUT_COST * (self._quantum or 0)
        waiting = [tenant.counter - turn / tenant.weight for tenant in self._present.values() if tenant.waits]
        for sequence in running:
            self._settle_level(sequence)
            if sequence.is_owed and not waiting:
                self._end_turn(sequence)
            elif sequence.is_owed and sequence.turn_left <= 0:
                self._renew(sequence)
        for tenant in self._present.values():
            if waiting and not tenant.waits:
                tenant.counter = max(tenant.counter, min(waiting))

    def pick(
        self, running: Items[Sequence], free_slots: int, now: float, may_run: Callable[[Sequence], bool]
    ) -> Pick | None:
        """The next change of slots, or None. `may_run` leaves out who cannot use a slot in this step."""
        aged = self._aged(now, may_run)
        if aged is not None:
            displaced = None if free_slots else _weakest([other for other in running if not other.is_owed])
            if free_slots or displaced is not None:
                return Pick(aged, displaced, is_owed=True, is_aged=True)
        waiting = [tenant for tenant in self._present.values() if tenant.waits]
        paid = {tenant.name: tenant.counter for tenant in self._present.values()} if len(self._present) > 1 else {}
        for sequence in running if paid else ():
            tenant = self._present[self._name(sequence)]
            paid[tenant.name] += sequence.turn_left / tenant.weight
        for tenant in sorted(waiting, key=lambda tenant: paid.get(tenant.name, 0.0)):
            for sequence, is_owed in self._candidates(tenant, may_run):
                if free_slots:
                    return Pick(sequence, None, is_owed)
                displaced = self._displaced(sequence, is_owed, running, paid)
                if displaced is not None:
                    return Pick(sequence, displaced, is_owed)
        return None

    def charge(self, sequence: Sequence, fresh_prompt_tokens: int, cached_tokens: int, output_tokens: int) -> None:
        """One chunk was served. Tokens that are computed a second time are nobody's wish, and cost nothing."""
        tenant, level = self._place(sequence)
        used = PROMPT_COST * fresh_prompt_tokens + OUTPUT_COST * output_tokens
        cost = used + CACHED_COST * cached_tokens
        tenant.served += cost
        self.level_tokens[sequence.level] += output_tokens
        sequence.turn_left = max(0.0, sequence.turn_left - used)
        if not sequence.is_owed:
            self._since_aged += output_tokens
        if any(other.waits for other in self._present.values()):
            tenant.counter += cost / tenant.weight
            self._earn(tenant, sequence, level)

    def sequences(self) -> Iterator[Sequence]:
        """All that have no slot."""
        for tenant in self._present.values():
            for level in tenant.levels:
                yield from level.line

    def tenants(self) -> list[tuple[str, float]]:
        """Those that have sequences here, and the weighted tokens that each was served."""
        return [(tenant.name, tenant.served) for tenant in self._present.values()]

    def _name(self, sequence: Sequence) -> str:
        return sequence.request.tenant if self._schedule.by_tenant else ""

    def _new_levels(self) -> tuple[Level, ...]:
        return tuple(Level(weight) for weight in self._schedule.weights)

    def _place(self, sequence: Sequence) -> tuple[Tenant, Level]:
        tenant = self._present[self._name(sequence)]
        return tenant, tenant.levels[sequence.level]

    def _most_credit(self, level: Level) -> float:
        return float(level.num_sequences * self._quantum) if self._quantum is not None else 0.0

    def _put(self, sequence: Sequence) -> None:
        line = self._place(sequence)[1].line
        if self._quantum is None or sequence.level < len(self._schedule.thresholds):
            insort(line, sequence, key=lambda other: other.arrival_index)
        elif sequence.turn_left > 0:
            line.insert(0, sequence)
        else:
            line.append(sequence)

    def _end_turn(self, sequence: Sequence) -> None:
        """An owed turn that ends early gives its rest back; the rest of the turn itself stays with the sequence."""
        if sequence.is_owed:
            _, level = self._place(sequence)
            level.credit = min(level.credit + sequence.turn_left / OUTPUT_COST, self._most_credit(level))
        sequence.is_owed = False

    def _renew(self, sequence: Sequence) -> None:
        """An owed turn is over: another one where its level is owed that too and nobody of the level waits."""
        _, level = self._place(sequence)
        sequence.is_owed = False
        if self._quantum is not None and level.credit >= self._quantum and not level.line:
            level.credit -= self._quantum
            sequence.is_owed, sequence.turn_left = True, OUTPUT_COST * self._quantum

    def _settle_level(self, sequence: Sequence) -> None:
        last = len(self._schedule.thresholds)
        level = last if sequence.is_demoted else self._schedule.level_of(sequence.output_tokens)
        if level == sequence.level:
            return
        tenant, old = self._place(sequence)
        self._end_turn(sequence)
        old.num_sequences -= 1
        old.credit = min(old.credit, self._most_credit(old))
        sequence.level, sequence.turn_left = level, 0.0
        tenant.levels[level].num_sequences += 1

    def _earn(self, tenant: Tenant, sequence: Sequence, level: Level) -> None:
        """Deeper levels that wait earn from a token of the foreground, and pay for what they use without being owed."""
        front = next(index for index, other in enumerate(tenant.levels) if other.num_sequences)
        if sequence.level == front:
            for deeper in tenant.levels[front + 1 :]:
                if deeper.num_sequences:
                    earned = deeper.weight / level.weight
                    deeper.credit = min(deeper.credit + earned, self._most_credit(deeper))
        elif not sequence.is_owed:
            level.credit = max(min(level.credit, 0.0), level.credit - 1.0)

    def _aged(self, now: float, may_run: Callable[[Sequence], bool]) -> Sequence | None:
        if self._quantum is None or self._since_aged < self._quantum:
            return None
        since = now - self._schedule.max_wait_seconds
        old = [sequence for sequence in self._stopped if sequence.waiting_since <= since and may_run(sequence)]
        return min(old, key=lambda sequence: (sequence.waiting_since, sequence.arrival_index), default=None)

    def _candidates(self, tenant: Tenant, may_run: Callable[[Sequence], bool]) -> Iterator[tuple[Sequence, bool]]:
        """Of each level the first that can run; those that are owed a turn first, the one that is owed most before."""
        heads = [next(filter(may_run, level.line), None) for level in tenant.levels]
        front = next(index for index, level in enumerate(tenant.levels) if level.num_sequences)
        if self._quantum is not None:
            owed = [i for i in range(front + 1, len(heads)) if tenant.levels[i].credit >= self._quantum]
            for index in sorted(owed, key=lambda i: -tenant.levels[i].credit):
                head = heads[index]
                if head is not None:
                    yield head, True
        for head in heads:
            if head is not None:
                yield head, False

    def _displaced(
        self, sequence: Sequence, is_owed: bool, running: Items[Sequence], paid: dict[str, float]
    ) -> Sequence | None:
        """Who gives way: one of the tenant that has paid most, where that is more; else one of the same tenant."""
        if self._quantum is None:
            return None
        name = self._name(sequence)
        others = [other for other in running if other.turn_left <= 0 and self._name(other) != name]
        richest = max((paid[self._name(other)] for other in others), default=0.0)
        if others and richest > paid[name]:
            return _weakest([other for other in others if paid[self._name(other)] == richest])
        own = [other for other in running if self._name(other) == name]
        return _weakest([other for other in own if _yields(other, sequence, is_owed)])


def _yields(running: Sequence, sequence: Sequence, is_owed: bool) -> bool:
    """Whether one that runs gives way to another of its tenant."""
    if running.is_owed:
        return False
    if running.level == sequence.level:
        return running.level > 0 and running.turn_left <= 0
    return is_owed or running.level > sequence.level


def _weakest(sequences: Items[Sequence]) -> Sequence | None:
    """The deepest, of those the youngest."""
    return max(sequences, key=lambda sequence: (sequence.level, sequence.arrival_index), default=None)
