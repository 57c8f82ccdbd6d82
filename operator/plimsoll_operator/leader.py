"""The Lease: of several operators one works, and a later one takes over when that one no longer says that it does.

Owns who leads. In: a cluster and an identity. Out: `wait_until_leading`, then `renew` as long as it works. Invariants:
a holder that was killed is succeeded after LEASE_SECONDS, measured on this process's clock from when its last sign was
seen, so clocks of machines need not agree; a holder that cannot renew within RENEW_WITHIN stops working before another
may begin.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from plimsoll_operator.cluster import LEASE, ApiFault, Cluster, Json

LEASE_NAME: Final = "plimsoll-operator"
LEASE_SECONDS: Final = 15
RENEW_WITHIN: Final = 10.0
RETRY_SECONDS: Final = 2.0
LOGGER: Final = logging.getLogger("plimsoll.leader")


class LeadershipLost(Exception):
    """Another one holds the Lease, or it could not be renewed in time: stop at once."""


@dataclass(slots=True)
class Leader:
    """One candidate. Blocking; run it in a thread."""

    cluster: Cluster
    namespace: str
    identity: str
    clock: Callable[[], float] = time.monotonic
    _seen: tuple[str, str] = ("", "")
    _seen_at: float = 0.0
    _renewed_at: float = 0.0

    def try_to_lead(self) -> bool:
        """One attempt: takes the Lease when it is free, ours, or its holder has been silent for too long."""
        began = self.clock()
        lease = self.cluster.read(LEASE, self.namespace, LEASE_NAME)
        try:
            if lease is None:
                self.cluster.create(LEASE, self._lease(None))
            elif self._may_take(lease):
                self.cluster.replace(LEASE, self._lease(lease))
            else:
                return False
        except ApiFault as fault:
            if fault.status == 409:
                return False
            raise
        self._renewed_at = began
        return True

    def renew(self) -> None:
        """One attempt. Raises LeadershipLost."""
        try:
            if self.try_to_lead():
                return
            raise LeadershipLost(f"Lease {self.namespace}/{LEASE_NAME} was taken by another operator")
        except ApiFault as fault:
            LOGGER.warning("the Lease could not be renewed: %s", fault)
        if self.clock() - self._renewed_at > RENEW_WITHIN:
            raise LeadershipLost(f"Lease {self.namespace}/{LEASE_NAME} could not be renewed for {RENEW_WITHIN:g} s")

    def give_up(self) -> None:
        """So that the next one need not wait. Best effort."""
        try:
            lease = self.cluster.read(LEASE, self.namespace, LEASE_NAME)
            if lease is not None and lease["spec"].get("holderIdentity") == self.identity:
                self.cluster.replace(LEASE, {**lease, "spec": {**lease["spec"], "holderIdentity": ""}})
        except ApiFault as fault:
            LOGGER.warning("the Lease could not be given up: %s", fault)

    def _may_take(self, lease: Json) -> bool:
        spec = lease.get("spec") or {}
        holder = str(spec.get("holderIdentity") or "")
        sign = (holder, str(spec.get("renewTime") or ""))
        if sign != self._seen:
            self._seen, self._seen_at = sign, self.clock()
        return holder in ("", self.identity) or self.clock() - self._seen_at > LEASE_SECONDS

    def _lease(self, before: Json | None) -> Json:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec: dict[str, Any] = {} if before is None else dict(before.get("spec") or {})
        if spec.get("holderIdentity") != self.identity:
            transitions = 0 if before is None else int(spec.get("leaseTransitions") or 0) + 1
            spec |= {"holderIdentity": self.identity, "acquireTime": now, "leaseTransitions": transitions}
        spec |= {"renewTime": now, "leaseDurationSeconds": LEASE_SECONDS}
        metadata = {"name": LEASE_NAME, "namespace": self.namespace} if before is None else before["metadata"]
        return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec}
