"""A real Kubernetes on one machine, for tests and demos: no Docker, nothing pulled, everything in one folder.

`open_control_plane()` and `open_cluster()` are what tests use; `cluster.py` beside this package is the same by hand.
The ambient KUBECONFIG is never read.
"""

from plimsoll_cluster.cluster import Cluster, open_cluster, open_control_plane
from plimsoll_cluster.commands import ClusterError

__all__ = ["Cluster", "ClusterError", "open_cluster", "open_control_plane"]
