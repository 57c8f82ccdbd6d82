"""The metrics of the runtime, counted: one object that the service and the routes write to.

Owns the registry; names, labels and help come from the contract. Labels are bounded: `route` is one of our paths or
`other`, `reason` a refusal code. No prompt, key, user or client address ever becomes a label. Invariant: a request that
reached a generation route ends in exactly one outcome.
"""

import functools
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from plimsoll_runtime.contract import metrics
from plimsoll_runtime.contract.metrics import Metric, Outcome, PageState

_BUCKETS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


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

    def watch_load(
        self,
        running: Callable[[], int],
        waiting: Callable[[], int],
        paused: Callable[[], int],
        pages: Callable[[PageState], int],
    ) -> None:
        """Gauges that are read from the engine when somebody scrapes."""
        for metric, value in (
            (metrics.REQUESTS_RUNNING, running),
            (metrics.REQUESTS_WAITING, waiting),
            (metrics.REQUESTS_PAUSED, paused),
        ):
            Gauge(metric.name, metric.help, registry=self.registry).set_function(value)
        gauge = Gauge(metrics.KV_PAGES.name, metrics.KV_PAGES.help, metrics.KV_PAGES.labels, registry=self.registry)
        states: tuple[PageState, ...] = ("free", "used", "cached")
        for state in states:
            gauge.labels(state=state).set_function(functools.partial(pages, state))

    def text(self) -> bytes:
        """The exposition format of Prometheus."""
        return generate_latest(self.registry)

    def _counter(self, metric: Metric) -> Counter:
        return Counter(metric.name, metric.help, metric.labels, registry=self.registry)

    def _histogram(self, metric: Metric) -> Histogram:
        return Histogram(metric.name, metric.help, metric.labels, registry=self.registry, buckets=_BUCKETS_SECONDS)
