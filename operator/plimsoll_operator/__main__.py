"""`plimsoll operator`: arguments, environment, and everything of the operator put together.

Owns the composition. In: flags, and POD_NAME, POD_NAMESPACE, HF_ENDPOINT as the chart sets them. Out: an exit code: 0
after a signal, 1 when it cannot go on, with one sentence where Kubernetes shows it, 2 for wrong arguments. The ambient
KUBECONFIG is not read: a cluster is the one of the pod, or of --kubeconfig.
"""

import argparse
import asyncio
import logging
import math
import os
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, get_args

from plimsoll_operator import names
from plimsoll_operator.cluster import SERVER, ApiFault, Cluster, connect
from plimsoll_operator.crd_check import in_words, missing_fields
from plimsoll_operator.desired import DEFAULT_OPERATOR_NAMESPACE, OperatorSettings
from plimsoll_operator.handlers import new_registry, watch
from plimsoll_operator.health import health_server
from plimsoll_operator.leader import RETRY_SECONDS, Leader, LeadershipLost
from plimsoll_operator.logs import LogFormat, LogLevel, set_up_logs
from plimsoll_operator.operator_metrics import OperatorMetrics
from plimsoll_operator.reconcile import Reconciler
from plimsoll_operator.replica_readings import ReplicaReadings
from plimsoll_operator.triggers import RESYNC_SECONDS, Triggers
from plimsoll_operator.work_queue import Key
from plimsoll_runtime.contract.last_words import give_up

METRICS_PORT: Final = 8080
HEALTH_PORT: Final = 8081
PARALLEL_READS: Final = 16
MIN_RESYNC_SECONDS: Final = 1.0
API_PATIENCE: Final = 300.0
LOGGER: Final = logging.getLogger("plimsoll.operator")


def main(arguments: Sequence[str]) -> int:
    """Run until SIGTERM or SIGINT."""
    options = _parser().parse_args(list(arguments))
    set_up_logs(options.log_format, options.log_level)
    if options.kubeconfig is not None:
        os.environ["KUBECONFIG"] = str(options.kubeconfig)  # where kopf looks
    try:
        return _Operator(options).run()
    except (ApiFault, LeadershipLost, OSError) as error:
        return give_up("operator", str(error))


class _Operator:
    """One process."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._metrics = OperatorMetrics()
        self._cluster = connect(options.kubeconfig, self._metrics.count_write)
        self._triggers: Triggers | None = None

    def run(self) -> int:
        stop_metrics = self._metrics.serve(self._options.metrics_port)
        try:
            with health_server(self._options.health_port, self._fault):
                asyncio.run(self._run())
        finally:
            stop_metrics()
        return 0

    def _fault(self) -> str | None:
        return None if self._triggers is None else self._triggers.fault()

    async def _run(self) -> None:
        leader = self._leader()
        if leader is not None:
            await _wait_for_lead(leader)
        await _wait_for_api(self._cluster, self._options.namespace)
        await asyncio.to_thread(_warn_of_an_older_crd, self._cluster)
        readers = ThreadPoolExecutor(PARALLEL_READS, thread_name_prefix="replicas")
        reconciler = Reconciler(self._cluster, ReplicaReadings(readers), _settings(self._options.default_image))
        triggers = Triggers(reconciler, self._metrics, self._options.namespace, self._options.resync_seconds)
        self._triggers = triggers
        LOGGER.info("watching %s", ", ".join(self._options.namespace) or "every namespace")
        try:
            await self._until_something_ends(triggers, leader)
        finally:
            triggers.close()
            readers.shutdown(wait=True, cancel_futures=True)
        if leader is not None:
            await asyncio.to_thread(leader.give_up)

    async def _until_something_ends(self, triggers: Triggers, leader: Leader | None) -> None:
        """The watch ends on a signal; the others end only by an error, which ends everything."""

        def tell_server(key: Key, version: str | None) -> None:
            triggers.watch.told(key, version)
            triggers.queue.add(key)

        registry = new_registry(tell_server, triggers.queue.add, self._options.kubeconfig)
        tasks = [
            asyncio.create_task(watch(registry, self._options.namespace)),
            asyncio.create_task(triggers.run()),
            *([] if leader is None else [asyncio.create_task(_keep_lead(leader))]),
        ]
        done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for task in done:
            task.result()

    def _leader(self) -> Leader | None:
        if not self._options.leader_election:
            return None
        namespace = os.environ.get("POD_NAMESPACE", DEFAULT_OPERATOR_NAMESPACE)
        identity = os.environ.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}"
        return Leader(self._cluster, namespace, identity)


def _settings(default_image: str) -> OperatorSettings:
    return OperatorSettings(
        runtime_image=default_image,
        operator_namespace=os.environ.get("POD_NAMESPACE", DEFAULT_OPERATOR_NAMESPACE),
        hub_endpoint=os.environ.get("HF_ENDPOINT") or None,
    )


async def _wait_for_lead(leader: Leader) -> None:
    said = False
    while True:
        try:
            if await asyncio.to_thread(leader.try_to_lead):
                LOGGER.info("leading as %s", leader.identity)
                return
        except ApiFault as fault:
            if fault.is_refusal:
                raise
            LOGGER.warning("the Lease could not be asked for: %s", fault)
        if not said:
            LOGGER.info("another operator leads: waiting")
            said = True
        await asyncio.sleep(RETRY_SECONDS)


async def _keep_lead(leader: Leader) -> None:
    while True:
        await asyncio.sleep(RETRY_SECONDS)
        await asyncio.to_thread(leader.renew)


async def _wait_for_api(cluster: Cluster, namespaces: Sequence[str]) -> None:
    """Until servers can be listed: the CRD may come after the operator, and a Role's binding takes effect late."""
    began = time.monotonic()
    for namespace in namespaces or (None,):
        while True:
            try:
                await asyncio.to_thread(cluster.list_all, SERVER, namespace)
                break
            except ApiFault as fault:
                words = f"{names.PLURAL}.{names.GROUP} cannot be listed yet ({fault}); is the CRD installed?"
                if time.monotonic() - began > API_PATIENCE:
                    raise ApiFault(fault.status, words) from None
                LOGGER.warning("%s", words)
            await asyncio.sleep(RETRY_SECONDS)


def _warn_of_an_older_crd(cluster: Cluster) -> None:
    """No reason to stop: servers that use none of its fields are served as before."""
    try:
        missing = missing_fields(cluster.openapi(names.API_VERSION))
    except ApiFault as fault:
        LOGGER.warning("whether the CRD is of this version could not be asked: %s", fault)
        return
    if missing:
        LOGGER.warning("%s", in_words(missing))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="plimsoll operator",
        description="Make InferenceServers of a cluster what their manifests say.",
        allow_abbrev=False,
    )
    parser.add_argument("--default-image", required=True, metavar="IMAGE", help="of servers whose manifest names none")
    parser.add_argument(
        "--namespace", action="append", default=[], metavar="NAME", help="may be repeated; without it: every namespace"
    )
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help="without it: the cluster of this pod")
    parser.add_argument("--leader-election", action="store_true", help="work only while holding a Lease")
    parser.add_argument("--log-format", choices=get_args(LogFormat), default="json")
    parser.add_argument("--log-level", choices=get_args(LogLevel), default="info")
    parser.add_argument("--metrics-port", type=int, default=METRICS_PORT)
    parser.add_argument("--health-port", type=int, default=HEALTH_PORT)
    parser.add_argument(
        "--resync-seconds",
        type=_seconds,
        default=RESYNC_SECONDS,
        metavar="SECONDS",
        help="in which every server is looked at once (default: %(default)g)",
    )
    return parser


def _seconds(text: str) -> float:
    """Raises ArgumentTypeError: a pause of 0 would ask the API server without end."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not MIN_RESYNC_SECONDS <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, {MIN_RESYNC_SECONDS:g} or more")
    return seconds
