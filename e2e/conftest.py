"""A real kubelet with the chart installed: what the tests here share. `make e2e` runs them; `make test` does not.

The cluster is the one of PLIMSOLL_E2E_KUBECONFIG, the one that `make cluster` started, or one made for this run. It has
to be one whose Service addresses this machine reaches, which the embedded one is.
"""

import os
from collections.abc import Iterator

import pytest
from plimsoll_cluster import Cluster, ClusterError, open_cluster, prerequisites
from plimsoll_cluster.binaries import find_binaries
from plimsoll_cluster.cluster import OUTSIDE_VARIABLE

from live_site import SYSTEM, Site, new_site
from release import IMAGES, install, is_installed


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """With both images and the operator in it, which works. An operator that is there already stays afterwards."""
    if not os.environ.get(OUTSIDE_VARIABLE):
        skip_where_none_can_be_made()
    with open_cluster() as opened:
        if opened.state is not None:
            for image in IMAGES:
                opened.load_image(image)
        was_there = is_installed(opened)
        install(opened)
        yield opened
        if not was_there:
            opened.helm("uninstall", "plimsoll", f"--namespace={SYSTEM}", "--wait")


def skip_where_none_can_be_made() -> None:
    """Says everything that the machine lacks."""
    try:
        prerequisites.check([*prerequisites.CONTROL_PLANE, *prerequisites.NODE, *prerequisites.IMAGES], as_root=True)
    except ClusterError as error:
        pytest.skip(f"cluster: {error}")
    if find_binaries() is None:
        pytest.skip("cluster: its programs are not built: run make cluster-binaries")


@pytest.fixture
def site(cluster: Cluster) -> Iterator[Site]:
    """A namespace of its own, which goes after the test."""
    with new_site(cluster) as made:
        yield made


@pytest.fixture
def other_site(cluster: Cluster) -> Iterator[Site]:
    """Another one beside `site`."""
    with new_site(cluster) as made:
        yield made
