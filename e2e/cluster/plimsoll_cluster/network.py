"""The cluster's network: one network namespace with everything in it, and one cable from the machine to it.

    machine                          namespace `plimsoll-cluster`
    10.243.0.1  plimsoll0 ──────── node0  10.243.0.2   API server, kubelet, DNS, kube-proxy's iptables rules
    routes to 10.244.0.0/24 (pods) and 10.96.0.0/16 (Services) over the cable

Bridges, iptables rules and sysctls of the machine stay as they are, and deleting the namespace deletes all of it,
cable and routes too. Pods reach the machine at HOST_ADDRESS; nothing forwards them any further.
"""

from pathlib import Path

from plimsoll_cluster.commands import ClusterError, run
from plimsoll_cluster.control_plane import POD_RANGE, SERVICE_RANGE

NAMESPACE = "plimsoll-cluster"
HOST_ADDRESS = "10.243.0.1"
NODE_ADDRESS = "10.243.0.2"
_HOST_END = "plimsoll0"
_NODE_END = "node0"
_NAMESPACE_FILE = Path("/run/netns") / NAMESPACE

# Only the network is entered: `ip netns exec` would also mount a new /sys over the machine's cgroups.
ENTER = ("nsenter", f"--net={_NAMESPACE_FILE}", "--")


def exists() -> bool:
    return _NAMESPACE_FILE.exists()


def make() -> None:
    taken = run(["ip", "-o", "route", "show", "root", POD_RANGE]) + run(
        ["ip", "-o", "route", "show", "root", SERVICE_RANGE]
    )
    if taken.strip():
        raise ClusterError(
            f"this machine already routes {POD_RANGE} or {SERVICE_RANGE}, which the cluster needs: {taken}"
        )
    run(["ip", "netns", "add", NAMESPACE])
    run(["ip", "link", "add", _HOST_END, "type", "veth", "peer", "name", _NODE_END, "netns", NAMESPACE])
    run(["ip", "address", "add", f"{HOST_ADDRESS}/30", "dev", _HOST_END])
    run(["ip", "link", "set", _HOST_END, "up"])
    inside = ["ip", "-n", NAMESPACE]
    run([*inside, "link", "set", "lo", "up"])
    run([*inside, "address", "add", f"{NODE_ADDRESS}/30", "dev", _NODE_END])
    run([*inside, "link", "set", _NODE_END, "up"])
    # A default route is what lets programs find "the" address of the node; nothing behind it forwards.
    run([*inside, "route", "add", "default", "via", HOST_ADDRESS])
    for destination in (POD_RANGE, SERVICE_RANGE):
        run(["ip", "route", "add", destination, "via", NODE_ADDRESS])
    run([*ENTER, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])


def remove() -> None:
    """The cable first: with the namespace it would go too, but a moment later, or not while a process lingers there."""
    if Path(f"/sys/class/net/{_HOST_END}").exists():
        run(["ip", "link", "delete", _HOST_END])
    if exists():
        run(["ip", "netns", "delete", NAMESPACE])
