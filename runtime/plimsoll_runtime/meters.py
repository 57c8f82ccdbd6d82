"""The metrics of the runtime, counted: one object that the service and the routes write to.

Owns the registry; names, labels and help come from the contract. Labels are bounded: `route` is one of our paths or
`other`, `reason` a refusal code. No prompt, key, user or client address ever becomes a label. Invariant: a request that
reached a generation route ends in exactly one outcome.
"""

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.registry import Collector

from plimsoll_runtime.contract import metrics
from plimsoll_runtime.contract.metrics import Metric, Outcome

_BUCKETS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_BUCKETS_SLOWDOWN = (1.01, 1.1, 1.25, 1.5, 2, 3, 5, 8, 13, 20, 50, 100)


class Meters:
    """Counters and histograms of one server; each server has a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._counter(metrics.REQUESTS)
        self._decisions = self._counter(metrics.BUDGET_DECISIONS)
        self._refusals = self._counter(metrics.REFUSALS)
        self._unknown_fields = self._counter(metrics.UNKNOWN_FIELDS)
        self._prompt_tokens = self._counter(metrics.PROMPT_TOKENS)
        self._cached_tokens = self._counter(metrics.CACHED_TOKENS)
        self._output_tokens = self._counter(metrics.OUTPUT_TOKENS)
        self._queue_wait = self._histogram(metrics.QUEUE_WAIT_SECONDS)
        self._first_token = self._histogram(metrics.TIME_TO_FIRST_TOKEN_SECONDS)
        self._inter_token = self._histogram(metrics.INTER_TOKEN_SECONDS)
        self._request = self._histogram(metrics.REQUEST_SECONDS)
        self._slowdown = self._histogram(metrics.SLOWDOWN, _BUCKETS_SLOWDOWN)

    def ended(self, route: str, outcome: Outcome, seconds: float) -> None:
        """One request of a generation route ended, refused ones too."""
        self._requests.labels(route=route, outcome=outcome).inc()
        self._request.observe(seconds)

    def refused(self, route: str, reason: str) -> None:
        """Any error answer that a client's request was given before it ran."""
        self._refusals.labels(route=route, reason=reason).inc()

    def decided(self, route: str, limited_by: str) -> None:
        """One budget was granted to a request that goes on to the engine."""
        self._decisions.labels(route=route, limited_by=limited_by).inc()

    def saw_unknown_fields(self, route: str, count: int) -> None:
        """Fields of a body that no dialect knows; their names are the client's, so only their number is kept."""
        if count:
            self._unknown_fields.labels(route=route).inc(count)

    def started(self, wait_seconds: float) -> None:
        """A request got its first running slot."""
        self._queue_wait.observe(wait_seconds)

    def prompt_done(self, prompt_tokens: int, cached_tokens: int) -> None:
        """One prompt is computed."""
        self._prompt_tokens.inc(prompt_tokens)
        self._cached_tokens.inc(cached_tokens)

    def token(self, since_arrival: float, since_last: float | None) -> None:
        """One token was sampled and counted; `since_last` is None for a choice's first."""
        self._output_tokens.inc()
        if since_last is None:
            self._first_token.observe(since_arrival)
        else:
            self._inter_token.observe(since_last)

    def served(self, seconds: float, waited_seconds: float) -> None:
        """A request is complete after `seconds`, of which it waited some: for its first slot, or paused."""
        if seconds > waited_seconds:
            self._slowdown.observe(seconds / (seconds - waited_seconds))

    def watch(self, collector: Collector) -> None:
        """What is read elsewhere when somebody scrapes."""
        self.registry.register(collector)

    def text(self) -> bytes:
        """The exposition format of Prometheus."""
        return generate_latest(self.registry)

    def _counter(self, metric: Metric) -> Counter:
        return Counter(metric.name, metric.help, metric.labels, registry=self.registry)

    def _histogram(self, metric: Metric, buckets: tuple[float, ...] = _BUCKETS_SECONDS) -> Histogram:
        return Histogram(metric.name, metric.help, metric.labels, registry=self.registry, buckets=buckets)
