"""The operator's own metrics, in a registry of their own.

Owns names and meaning. In: what happens. Out: `plimsoll_operator_*` in the Prometheus text format, over HTTP. It reads
nothing of a cluster.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

PREFIX = "plimsoll_operator"
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class OperatorMetrics:
    """One per process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.reconciles = Counter(
            f"{PREFIX}_reconciles", "Reconciles by what they came to", ["outcome"], registry=self.registry
        )
        self.seconds = Histogram(
            f"{PREFIX}_reconcile_seconds", "Duration of a reconcile", buckets=SECONDS, registry=self.registry
        )
        self.writes = Counter(
            f"{PREFIX}_writes", "Writes to the API server, refused ones too", ["verb", "kind"], registry=self.registry
        )
        self.servers = Gauge(f"{PREFIX}_servers", "InferenceServers in the latest listing", registry=self.registry)
        self._gauges: list[Gauge] = []

    def count_write(self, verb: str, kind: str) -> None:
        self.writes.labels(verb, kind).inc()

    def observe(self, name: str, meaning: str, read: Callable[[], float]) -> None:
        """A gauge that is read when it is asked for."""
        gauge = Gauge(f"{PREFIX}_{name}", meaning, registry=self.registry)
        gauge.set_function(read)
        self._gauges.append(gauge)

    def serve(self, port: int) -> Callable[[], None]:
        """At every path of the port, in a thread; returns how to stop."""
        server, thread = start_http_server(port, registry=self.registry)

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return stop
