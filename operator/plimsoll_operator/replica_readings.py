"""What replicas say over HTTP: asked in parallel with short timeouts, remembered for some minutes.

Owns the requests to `/budget` and `/metrics` of pods, and their history. In: pods. Out: readings for a snapshot. It
judges nothing. Invariants: a pod that does not answer costs seconds and a fault, never an exception; only containers
that run are asked; nothing is kept of a pod that is gone.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Final

import urllib3

from plimsoll_operator import names
from plimsoll_operator.budgets import WINDOW_SECONDS, read_counts
from plimsoll_operator.observed import BudgetReading, Document, RequestCounts, is_pod_ready, is_terminating, name_of
from plimsoll_runtime.contract.endpoints import BUDGET, DEFAULT_PORT, METRICS

TIMEOUT: Final = urllib3.Timeout(connect=1.0, read=2.0)
MAX_BODY_BYTES: Final = 1 << 20
ServerKey = tuple[str, str]
"""(namespace, name) of an InferenceServer."""


@dataclass(frozen=True, slots=True)
class Readings:
    """Of one server, by pod name."""

    budgets: Mapping[str, BudgetReading] = field(default_factory=dict)
    counts: Mapping[str, tuple[RequestCounts, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class _Memory:
    """The pods of a server as they were last seen, by name, and what they said."""

    pods: tuple[Document, ...] = ()
    readings: Readings = field(default_factory=Readings)


class ReplicaReadings:
    """Asks pods. One server is asked by one thread at a time; different servers by many."""

    def __init__(self, executor: Executor, clock: Callable[[], float] = time.monotonic) -> None:
        self._executor = executor
        self._clock = clock
        self._http = urllib3.PoolManager(retries=False, timeout=TIMEOUT, num_pools=64)
        self._memory: dict[ServerKey, _Memory] = {}

    def refresh(self, key: ServerKey, pods: Sequence[Document]) -> Readings:
        """Ask every pod that can answer, and return what is known now."""
        asked = [pod for pod in pods if _can_answer(pod)]
        answers = list(self._executor.map(self._ask, asked))
        before = self._memory.get(key, _Memory()).readings
        counts = {}
        for pod, (_, latest) in zip(asked, answers, strict=True):
            history = (*before.counts.get(name_of(pod), ()), *latest)
            if history:  # a pod that never told its counters is absent
                counts[name_of(pod)] = _within_window(history)
        budgets = {name_of(pod): budget for pod, (budget, _) in zip(asked, answers, strict=True)}
        self._memory[key] = _Memory(tuple(asked), Readings(budgets, counts))
        return self._memory[key].readings

    def poll(self, key: ServerKey) -> bool:
        """Ask the pods of the last refresh again; whether what matters has changed."""
        memory = self._memory.get(key)
        if memory is None or not memory.pods:
            return False
        after = self.refresh(key, memory.pods)
        return bool(_without_load(memory.readings) != _without_load(after))

    def forget(self, key: ServerKey) -> None:
        self._memory.pop(key, None)

    def servers(self) -> list[ServerKey]:
        """The servers that have pods to ask."""
        return list(self._memory)

    def _ask(self, pod: Document) -> tuple[BudgetReading, tuple[RequestCounts, ...]]:
        """Counters only of a pod that answers: one that hangs is not waited for twice."""
        address = f"http://{_host(pod['status']['podIP'])}:{DEFAULT_PORT}"
        try:
            body = json.loads(self._get(address + BUDGET))
            if not isinstance(body, dict):
                return BudgetReading(fault="its /budget is not an object"), ()
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            return BudgetReading(fault=f"its /budget cannot be read: {_in_words(error)}"), ()
        try:
            counts = read_counts(self._get(address + METRICS).decode("utf-8", "replace"), self._clock())
        except (urllib3.exceptions.HTTPError, OSError, ValueError):
            return BudgetReading(body), ()
        return BudgetReading(body), (counts,)

    def _get(self, url: str) -> bytes:
        """The whole body, or ValueError; a connection with something left in it is not used again."""
        answer = self._http.request("GET", url, preload_content=False, redirect=False)
        body: bytes = answer.read(MAX_BODY_BYTES + 1)
        if answer.status == 200 and len(body) <= MAX_BODY_BYTES:
            answer.release_conn()
            return body
        answer.close()
        raise ValueError(f"status {answer.status}" if answer.status != 200 else f"more than {MAX_BODY_BYTES} bytes")


def _can_answer(pod: Document) -> bool:
    """Running since its startup probe succeeded. A pod that drains is not asked: it is on its way out."""
    status = pod.get("status") or {}
    running: bool = any(
        each["name"] == names.CONTAINER and (each.get("state") or {}).get("running") is not None
        for each in status.get("containerStatuses") or ()
    )
    return bool(status.get("podIP")) and not is_terminating(pod) and (running or is_pod_ready(pod)) and _started(pod)


def _started(pod: Document) -> bool:
    """Before its startup probe has succeeded a runtime loads its model, and has no budget to tell."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return any(each["name"] == names.CONTAINER and each.get("started", False) for each in statuses)


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _in_words(error: Exception) -> str:
    if isinstance(error, urllib3.exceptions.NewConnectionError):  # which urllib3 counts among the timeouts
        return "no connection"
    if isinstance(error, urllib3.exceptions.TimeoutError):
        return "no answer in time"
    if isinstance(error, urllib3.exceptions.HTTPError):
        return "no connection"
    return " ".join(str(error).split())[:200]


def _within_window(history: Sequence[RequestCounts]) -> tuple[RequestCounts, ...]:
    return tuple(each for each in history if each.at >= history[-1].at - WINDOW_SECONDS)


def _without_load(readings: Readings) -> Any:
    """What a status shows of readings: limits and faults, and whether requests were refused."""
    budgets = {
        pod: (each.fault, {key: value for key, value in (each.body or {}).items() if key != "load"})
        for pod, each in readings.budgets.items()
    }
    refused = {
        pod: sum(counts[-1].refused.values()) > sum(counts[0].refused.values())
        for pod, counts in readings.counts.items()
    }
    return budgets, refused
