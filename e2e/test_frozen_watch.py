"""A connection that dies in silence: the operator's watch is noticed and made anew.

The operator is a process of this machine; between it and the API server is a proxy that stops passing bytes on.
"""

from pathlib import Path

import pytest
from plimsoll_cluster import open_control_plane
from plimsoll_cluster.binaries import OF_CONTROL_PLANE, find_binaries

from live_site import Site
from operator_process import install_chart, running_operator
from silent_proxy import between

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


def test_an_edit_is_seen_although_the_watch_has_died_in_silence(tmp_path: Path) -> None:
    """B107. Before, the operator lived on and handled nothing. No resync helps it here."""
    if find_binaries(OF_CONTROL_PLANE) is None:
        pytest.skip("cluster: the control plane is not built here: run make cluster-binaries")
    with open_control_plane() as cluster:
        installed = install_chart(cluster, tmp_path)
        site = Site(cluster, "default")
        with (
            between(installed, tmp_path) as (through, proxy),
            running_operator(through, tmp_path / "operator.log", resync_seconds=3600) as operator,
        ):
            site.apply()
            site.wait(lambda: site.flags() != [], lambda: "no Deployment comes")
            assert proxy.freeze() > 0
            site.apply(maxOutput={"default": 99, "limit": 1024})
            site.wait(lambda: "--max-output-default=99" in site.flags(), lambda: "the edit is not seen", 180)
            assert operator.is_healthy()
