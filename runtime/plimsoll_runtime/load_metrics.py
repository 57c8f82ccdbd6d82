"""The load of the engine and of the expert cache as metrics, read when somebody scrapes.

Owns the translation to samples. In: a function that reads an `EngineLoad`, and a cache's counts. Out: metric families
for prometheus_client's registry. It counts nothing itself. Labels are bounded: tenants appear by the first digits of
their key's hash, only while they are in the house, and only those served most; the rest are one.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from plimsoll_runtime.contract import metrics
from plimsoll_runtime.engine.load import EngineLoad
from plimsoll_runtime.models.experts.cache import ExpertCache

MAX_TENANTS = 16
TENANT_DIGITS = 8
OTHER_TENANTS = "others"

Samples = Iterable[tuple[tuple[str, ...], float]]


class LoadCollector(Collector):
    """Registered once the engine is attached."""

    def __init__(self, load: Callable[[], EngineLoad]) -> None:
        self._load = load

    def collect(self) -> Iterator[Metric]:
        load = self._load()
        yield from _gauges(load)
        yield from _counters(load)


class ExpertCollector(Collector):
    """Registered where experts are on disk."""

    def __init__(self, experts: ExpertCache) -> None:
        self._experts = experts

    def collect(self) -> Iterator[Metric]:
        counts, used = self._experts.counts, self._experts.num_resident
        yield _counter(metrics.EXPERT_USES, [(("hit",), counts.hits), (("miss",), counts.misses)])
        yield _counter(metrics.EXPERT_BYTES, [((), counts.brought_bytes)])
        yield _counter(metrics.EXPERT_WAIT_SECONDS, [((), counts.wait_seconds)])
        yield _gauge(metrics.EXPERT_SLOTS, [(("used",), used), (("free",), self._experts.num_slots - used)])


def _gauges(load: EngineLoad) -> Iterator[Metric]:
    yield _gauge(metrics.REQUESTS_RUNNING, [((), load.running)])
    yield _gauge(metrics.REQUESTS_WAITING, [((), load.waiting)])
    yield _gauge(metrics.REQUESTS_PAUSED, [((), load.paused)])
    pages = {"free": load.pages_free, "used": load.pages_used, "cached": load.pages_cached}
    yield _gauge(metrics.KV_PAGES, [((state,), count) for state, count in pages.items()])
    waits = [((str(number),), level.oldest_wait_seconds) for number, level in enumerate(load.levels)]
    yield _gauge(metrics.OLDEST_WAIT_SECONDS, waits)
    yield _gauge(metrics.TENANT_SHARE, [((name,), share) for name, share in tenant_shares(load.tenant_tokens)])


def _counters(load: EngineLoad) -> Iterator[Metric]:
    counts = load.counts
    kinds = {"pause": counts.pauses, "swap": counts.swaps, "recompute": counts.recomputes}
    yield _counter(metrics.PREEMPTIONS, [((kind,), count) for kind, count in kinds.items()])
    directions = {"out": counts.swapped_out_bytes, "in": counts.swapped_in_bytes}
    yield _counter(metrics.SWAP_BYTES, [((direction,), count) for direction, count in directions.items()])
    yield _counter(metrics.LEVEL_TOKENS, [((str(number),), level.tokens) for number, level in enumerate(load.levels)])
    yield _counter(metrics.DEADLINE_TRUNCATIONS, [((), counts.deadline_truncations)])
    actions = {"demoted": counts.demotions, "stopped": counts.repetition_stops}
    yield _counter(metrics.REPETITIONS, [((action,), count) for action, count in actions.items()])


def tenant_shares(tenant_tokens: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """The share of each tenant by its short name, most served first, MAX_TENANTS names at most."""
    served: dict[str, float] = {}
    for position, (tenant, tokens) in enumerate(sorted(tenant_tokens, key=lambda pair: -pair[1])):
        name = tenant[:TENANT_DIGITS] if position < MAX_TENANTS - 1 else OTHER_TENANTS
        served[name] = served.get(name, 0.0) + tokens
    total = sum(served.values())
    return [(name, tokens / total if total else 0.0) for name, tokens in served.items()]


def _gauge(metric: metrics.Metric, samples: Samples) -> Metric:
    family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _counter(metric: metrics.Metric, samples: Samples) -> Metric:
    family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family
