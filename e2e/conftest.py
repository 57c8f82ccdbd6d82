"""A real kubelet with the chart installed: what the tests here share. `make e2e` runs them; `make test` does not.

The cluster is the one of PLIMSOLL_E2E_KUBECONFIG, the one that `make cluster` started, or one made for this run. It has
to be one whose Service addresses this machine reaches, which the embedded one is.
"""

import os
from collections.abc import Iterator

import pytest
from plimsoll_cluster import Cluster, open_cluster
from plimsoll_cluster.binaries import find_binaries

from live_site import SYSTEM, Site, new_site
from release import IMAGES, install, is_installed


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """With both images and the operator in it, which works. An operator that is there already stays afterwards."""
    if not os.environ.get("PLIMSOLL_E2E_KUBECONFIG") and (find_binaries() is None or os.geteuid() != 0):
        pytest.skip("cluster: needs root and the programs that make cluster-binaries builds")
    with open_cluster() as opened:
        if opened.state is not None:
            for image in IMAGES:
                opened.load_image(image)
        was_there = is_installed(opened)
        install(opened)
        yield opened
        if not was_there:
            opened.helm("uninstall", "plimsoll", f"--namespace={SYSTEM}", "--wait")


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
