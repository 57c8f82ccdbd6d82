"""`make bench-ready`: how long a server takes from `kubectl apply` to Ready, where the images are there already.

Seconds of this machine's clock around kubectl, which waits with a watch; the API server, the node, the operator and the
replica share the processor. Out: a table. It asserts nothing: a benchmark is read, never passed.
"""

import statistics
import sys
import time
from collections.abc import Callable

from plimsoll_cluster import ClusterError, open_cluster

from live_site import Site, new_site
from release import IMAGES, install

ROUNDS = 5
PATIENCE = "--timeout=300s"
READY = "kubectl apply to Ready"
CHANGED = "changed default to Ready, one replica"
GONE = "kubectl delete to no pod left"


def main() -> int:
    try:
        with open_cluster() as cluster:
            for image in IMAGES if cluster.state is not None else ():
                cluster.load_image(image)
            install(cluster)
            figures: dict[str, list[float]] = {READY: [], CHANGED: [], GONE: []}
            for number in range(ROUNDS):
                with new_site(cluster) as site:
                    measure(site, figures)
                print(f"round {number + 1} of {ROUNDS}", file=sys.stderr, flush=True)
    except ClusterError as error:
        print(f"bench-ready: {error}", file=sys.stderr)
        return 1
    print("| figure | median | fastest | slowest |\n|---|---:|---:|---:|")
    for name, seconds in figures.items():
        print(f"| {name} | {statistics.median(seconds):.1f} s | {min(seconds):.1f} s | {max(seconds):.1f} s |")
    return 0


def measure(site: Site, figures: dict[str, list[float]]) -> None:
    """One life of a server as its sample says."""

    def be_ready() -> None:
        site.kubectl("wait", "--for=condition=Ready", "infsrv/smollm2", PATIENCE)

    def begin() -> None:
        site.apply(resources=None)
        be_ready()

    def change() -> None:
        site.apply(resources=None, maxOutput={"default": 100, "limit": 1024})
        be_ready()

    def end() -> None:
        site.kubectl("delete", "infsrv/smollm2", PATIENCE)
        site.kubectl("wait", "--for=delete", "pods", "--all", PATIENCE)

    figures[READY].append(timed(begin))
    figures[CHANGED].append(timed(change))
    figures[GONE].append(timed(end))


def timed(act: Callable[[], None]) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
