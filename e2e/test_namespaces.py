"""Two servers of one name, and a namespace that goes with everything in it."""

import pytest

from live_site import Site

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


def test_two_servers_of_one_name_in_two_namespaces(site: Site, other_site: Site) -> None:
    """Before, what was remembered by name alone went from one to the other."""
    site.apply(maxOutput={"default": 100, "limit": 1024})
    other_site.apply(maxOutput={"default": 200, "limit": 1024})
    site.wait_ready()
    other_site.wait_ready()
    assert granted(site, other_site) == [100, 200]
    pods = other_site.identities()
    site.apply(maxOutput={"default": 300, "limit": 1024})
    site.wait_ready()
    assert granted(site, other_site) == [300, 200]
    site.kubectl("delete", "infsrv/smollm2", "--timeout=60s")
    site.wait(lambda: not site.pods(), lambda: "its pods stay", 90)
    assert other_site.identities() == pods
    assert granted(other_site) == [200]


def granted(*sites: Site) -> list[int]:
    return [site.budget()["max_output_tokens"] for site in sites]


def test_a_namespace_goes_within_a_minute(site: Site) -> None:
    """B96. Before, a finalizer kept it for ever.

    Kubernetes looks again after half of the longest grace period of its pods, so with the sample's 600 s for a request
    the namespace itself stays for minutes, empty: `drainSeconds` decides that.
    """
    site.apply(drainSeconds=20)
    site.wait_ready()
    site.cluster.kubectl("delete", "namespace", site.namespace, "--timeout=60s")
