"""The memory behind `store` and `previous_response_id`: answers of `/v1/responses`, for a while.

Owns what is kept. In: a response object and the conversation up to its answer, both JSON values. Out: copies of them,
to the tenant that stored them and to nobody else. It knows no clock (an argument) and no wire format. Invariants: never
more than `max_responses` and `max_bytes` are held (bytes of the JSON texts), nothing is given out after
`keep_seconds`; when room is needed, the oldest response of the tenant that holds most goes first, so nobody can push
out another who holds less. The store is in the memory of one process: it is empty after a restart, and with several
replicas each pod has its own, so `previous_response_id` needs session affinity. One event loop uses it, without locks.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

MAX_RESPONSES: Final = 1024
MAX_BYTES: Final = 64 * 1024 * 1024
KEEP_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class _Stored:
    response: bytes
    conversation: bytes
    gone_after: float

    @property
    def num_bytes(self) -> int:
        return len(self.response) + len(self.conversation)


class ResponseStore:
    """`clock` gives seconds that only grow (time.monotonic)."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        max_responses: int = MAX_RESPONSES,
        max_bytes: int = MAX_BYTES,
        keep_seconds: float = KEEP_SECONDS,
    ) -> None:
        self._clock = clock
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._keep_seconds = keep_seconds
        self._tenants: dict[str, OrderedDict[str, _Stored]] = {}
        self._num_bytes: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(len(held) for held in self._tenants.values())

    @property
    def num_bytes(self) -> int:
        return sum(self._num_bytes.values())

    def put(self, tenant: str, response: Mapping[str, Any], conversation: Sequence[Mapping[str, Any]]) -> bool:
        """Keeps both under `response["id"]`; False where they alone are more than the store may hold."""
        stored = _Stored(_json_bytes(response), _json_bytes(list(conversation)), self._clock() + self._keep_seconds)
        if stored.num_bytes > self._max_bytes or self._max_responses < 1:
            return False
        self.delete(tenant, response["id"])
        self._drop_expired()
        self._tenants.setdefault(tenant, OrderedDict())[response["id"]] = stored
        self._num_bytes[tenant] = self._num_bytes.get(tenant, 0) + stored.num_bytes
        while len(self) > self._max_responses or self.num_bytes > self._max_bytes:
            self._drop_oldest(self._fullest_tenant())
        return self._find(tenant, response["id"]) is not None

    def response(self, tenant: str, response_id: str) -> dict[str, Any] | None:
        """The response object as it was answered."""
        stored = self._find(tenant, response_id)
        return None if stored is None else dict(json.loads(stored.response))

    def conversation(self, tenant: str, response_id: str) -> list[dict[str, Any]] | None:
        """The messages up to and with that answer, without the instructions of its request."""
        stored = self._find(tenant, response_id)
        return None if stored is None else list(json.loads(stored.conversation))

    def delete(self, tenant: str, response_id: str) -> bool:
        """Whether there was such a response."""
        if self._find(tenant, response_id) is None:
            return False
        self._drop(tenant, response_id)
        return True

    def _find(self, tenant: str, response_id: str) -> _Stored | None:
        held = self._tenants.get(tenant)
        stored = None if held is None else held.get(response_id)
        return None if stored is None or stored.gone_after <= self._clock() else stored

    def _drop_expired(self) -> None:
        """Each tenant's responses stand in order of age, so the look ends at the first that is still good."""
        now = self._clock()
        for tenant in list(self._tenants):
            while tenant in self._tenants and next(iter(self._tenants[tenant].values())).gone_after <= now:
                self._drop_oldest(tenant)

    def _fullest_tenant(self) -> str:
        """By share of whichever bound is nearer, so that neither many small answers nor a few large ones win."""
        return max(self._tenants, key=self._share)

    def _share(self, tenant: str) -> float:
        return max(len(self._tenants[tenant]) / self._max_responses, self._num_bytes[tenant] / self._max_bytes)

    def _drop_oldest(self, tenant: str) -> None:
        self._drop(tenant, next(iter(self._tenants[tenant])))

    def _drop(self, tenant: str, response_id: str) -> None:
        held = self._tenants[tenant]
        self._num_bytes[tenant] -= held.pop(response_id).num_bytes
        if not held:
            del self._tenants[tenant], self._num_bytes[tenant]


def _json_bytes(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
