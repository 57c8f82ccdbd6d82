"""What every route of one server shares: its settings, its counters, and the service once the model is loaded.

Owns the moment between "the process answers" and "the model answers": until `service` is set, everything that needs the
model is 503. In: what __main__ composes. It holds no request.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from plimsoll_runtime.contract.config import RuntimeConfig
from plimsoll_runtime.meters import Meters
from plimsoll_runtime.refusal import Refusal
from plimsoll_runtime.routes.response_store import ResponseStore
from plimsoll_runtime.service import Service

PING_SECONDS = 15.0
READY_STEP_SECONDS = 10.0
"""A busy engine that made no step for longer is not ready: new work should go elsewhere."""
LIVE_STEP_SECONDS = 180.0
"""A busy engine that made no step for longer is not live: a first-shape compile or a long prefill stays below."""


@dataclass(slots=True)
class Front:
    """`wall_clock` gives seconds since the epoch for `created` fields; `ping_seconds` is the longest silence of a
    stream. `kv_capacity_tokens`, `kernels` and `offload` are known once the model is loaded."""

    config: RuntimeConfig
    served_name: str
    revision: str
    meters: Meters
    store: ResponseStore
    wall_clock: Callable[[], float]
    ping_seconds: float = PING_SECONDS
    service: Service | None = None
    kv_capacity_tokens: int = 0
    kernels: Mapping[str, str | int] = field(default_factory=dict)
    offload: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def system_fingerprint(self) -> str:
        return f"fp_{self.revision}"

    def loaded(self) -> Service | Refusal:
        """The service, or why there is none yet."""
        if self.service is not None:
            return self.service
        return Refusal(code="unavailable", message="the model is still loading: send the request again")

    def is_live(self) -> bool:
        """Independent of loading and draining: false only when a restart is the cure."""
        if self.service is None:
            return True
        engine = self.service.engine
        return engine.is_alive() and engine.seconds_since_last_step() < LIVE_STEP_SECONDS

    def is_ready(self) -> bool:
        """Whether new requests should come here."""
        service = self.service
        if service is None or not service.is_accepting:
            return False
        return service.engine.is_alive() and service.engine.seconds_since_last_step() < READY_STEP_SECONDS
