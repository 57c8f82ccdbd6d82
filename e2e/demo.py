"""`make cluster-demo`: the chart and the sample in the running cluster, and each route asked from a pod inside of it.

Out: lines of progress, the table of `kubectl get infsrv`, and exit code 0 when every route answered and all four gave
one answer to a request over the budget. What it makes stays, in the namespaces plimsoll-system and plimsoll-demo.
"""

import sys
import time
from collections.abc import Mapping
from typing import Any

from plimsoll_cluster import Cluster, ClusterError, open_cluster

from live_site import READY_SECONDS, ROOT, SAMPLE, SYSTEM, Site
from release import IMAGES, RUNTIME_IMAGE, install, missing_images

NAMESPACE = "plimsoll-demo"
NAME = str(SAMPLE["metadata"]["name"])
POD_SECONDS = 180


def main() -> int:
    try:
        with open_cluster() as cluster:
            demonstrate(cluster)
    except ClusterError as error:
        print(f"cluster-demo: {error}", file=sys.stderr)
        return 1
    return 0


def demonstrate(cluster: Cluster) -> None:
    hand_over_images(cluster)
    say(f"helm upgrade --install plimsoll charts/plimsoll --namespace {SYSTEM}")
    install(cluster)
    site = Site(cluster, NAMESPACE)
    if NAMESPACE not in cluster.kubectl("get", "namespaces", "--output=name"):
        cluster.kubectl("create", "namespace", NAMESPACE)
    say(f"kubectl apply -f crds/samples/smollm2.yaml --namespace {NAMESPACE}")
    site.kubectl("apply", f"--filename={ROOT / 'crds' / 'samples' / 'smollm2.yaml'}")
    say(f"kubectl wait --for=condition=Ready infsrv/{NAME}")
    start = time.monotonic()
    site.kubectl("wait", "--for=condition=Ready", f"infsrv/{NAME}", f"--timeout={READY_SECONDS}s")
    say(f"ready after {time.monotonic() - start:.1f} s")
    ask_from_inside(site)
    say("kubectl get infsrv")
    print(site.kubectl("get", "infsrv").rstrip(), flush=True)
    say(f"it goes on: kubectl --kubeconfig {cluster.kubeconfig} -n {NAMESPACE} get all; make cluster-down ends it")


def hand_over_images(cluster: Cluster) -> None:
    """Only where they can be handed over: another cluster pulls its own."""
    missing = missing_images(cluster)
    if cluster.state is None:
        if missing:
            say(f"the nodes of this cluster do not have {', '.join(missing)}; its pods wait until they can pull them")
        return
    for image in missing:
        say(f"handing {image} to the cluster")
        cluster.load_image(image)
    if not missing:
        say(f"the cluster has {' and '.join(IMAGES)} (`make cluster-images` brings new ones)")


def ask_from_inside(site: Site) -> None:
    url = f"http://{NAME}.{NAMESPACE}.svc:8000"
    say(f"one request for each route, from a pod, to {url}")
    script = (ROOT / "e2e" / "ask_routes.py").read_text()
    print(run_pod(site, "ask-routes", ["python", "-c", script, url, SAMPLE["spec"]["model"]["servedName"]]), flush=True)
    say("the same request over the budget to each route, from a pod: plimsoll probe-routes")
    print(run_pod(site, "probe-routes", ["plimsoll", "probe-routes", url]), flush=True)


def run_pod(site: Site, name: str, command: list[str]) -> str:
    """What a pod of the runtime's image prints. Raises ClusterError with that when it fails."""
    site.kubectl("delete", "pod", name, "--ignore-not-found", "--now")
    words = ("run", name, f"--image={RUNTIME_IMAGE}", "--image-pull-policy=IfNotPresent", "--restart=Never")
    site.kubectl(*words, "--command", "--", *command)
    end = time.monotonic() + POD_SECONDS
    while (phase := phase_of(site.get("pod", name))) not in ("Succeeded", "Failed"):
        if time.monotonic() > end:
            raise ClusterError(f"the pod {name} is {phase} after {POD_SECONDS} s")
        time.sleep(0.5)
    printed = site.kubectl("logs", name).rstrip()
    site.kubectl("delete", "pod", name, "--now")
    if phase == "Failed":
        raise ClusterError(f"the pod {name} failed:\n{printed}")
    return printed


def phase_of(pod: Mapping[str, Any]) -> str:
    return str(pod["status"].get("phase", "Pending"))


def say(what: str) -> None:
    print(f"\n== {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
