"""The one node: containerd, kubelet, kube-proxy and CoreDNS, configured to live in the state folder.

In: a running control plane inside the cluster's network namespace. Out: a node that is Ready. Settings that a plain
installation would not have are explained where they stand. Pods are connected point to point (the `ptp` plugin):
each packet between pods is routed, so Services work between pods of the node without the machine's br_netfilter.
"""

import json
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path

import yaml

from plimsoll_cluster import cgroups, images
from plimsoll_cluster.control_plane import POD_RANGE, ControlPlane
from plimsoll_cluster.credentials import NODE_NAME
from plimsoll_cluster.network import NODE_ADDRESS
from plimsoll_cluster.prerequisites import CNI_FOLDERS

PAUSE_IMAGE = "localhost/plimsoll/pause:1"
_READY_SECONDS = 180
_DNS_READY_PORT = 8181

_CONTAINERD_CONFIG = """\
version = 2
root = "{state}/containerd/root"
state = "{state}/containerd/state"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Where the machine forbids lowering oom_score_adj, runc would die of it.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "overlayfs"
  default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = false
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{cni_programs}"
  conf_dir = "{state}/cni"
"""

_DNS_CONFIG = """\
cluster.local:53 in-addr.arpa:53 {{
    bind {address}
    errors
    ready {address}:{ready_port}
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {kubeconfig}
    }}
    cache 5
}}
# Nothing outside can be resolved from here: say so at once. (In one block with `kubernetes` it would answer first.)
.:53 {{
    bind {address}
    template ANY ANY . {{
        rcode NXDOMAIN
    }}
}}
"""

_DNS_RIGHTS = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: plimsoll-coredns}
rules:
- {apiGroups: [""], resources: [endpoints, services, pods, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: plimsoll-coredns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: plimsoll-coredns}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: "plimsoll:coredns"}
"""


class Node:
    def __init__(self, control_plane: ControlPlane) -> None:
        self._control_plane = control_plane
        self._state = control_plane.state
        self._processes = control_plane.processes

    def start(self) -> None:
        """Returns when the node is Ready, DNS answers and the Service addresses work."""
        self._start_containerd()
        self._start_kubelet()
        self._start_kube_proxy()
        self._start_dns()
        self._processes.wait_until("the node is Ready", self._is_ready, blame="kubelet", timeout_seconds=_READY_SECONDS)
        self._processes.wait_until("cluster DNS is ready", self._dns_is_ready, blame="coredns", timeout_seconds=60)

    def _start_containerd(self) -> None:
        socket = containerd_socket(self._state)
        config = self._state / "containerd.toml"
        config.write_text(containerd_config(self._state))
        network = self._state / "cni" / "10-plimsoll.conflist"
        network.parent.mkdir()
        network.write_text(json.dumps(pod_network(self._state), indent=1))
        command = [*self._control_plane.site.prefix, "containerd", f"--config={config}"]
        self._processes.start("containerd", command)
        self._processes.wait_until("containerd listens", socket.exists, blame="containerd", timeout_seconds=60)
        archive = self._state / "pause.tar"
        images.write_archive(archive, PAUSE_IMAGE, self._control_plane.binaries / "pause")
        images.import_archive(archive, socket)
        archive.unlink()

    def _start_kubelet(self) -> None:
        resolver = self._state / "resolv.conf"
        resolver.write_text(f"nameserver {NODE_ADDRESS}\n")
        config = self._state / "kubelet.yaml"
        config.write_text(yaml.safe_dump(kubelet_config(self._state, self._control_plane.credentials.authority)))
        arguments = [
            f"--config={config}",
            f"--kubeconfig={self._control_plane.credentials.kubeconfig('kubelet')}",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={NODE_ADDRESS}",
            f"--root-dir={self._state}/kubelet",
            f"--cert-dir={self._state}/kubelet-certificates",
        ]
        self._control_plane.start_server("kubelet", arguments)

    def _start_kube_proxy(self) -> None:
        arguments = [
            f"--kubeconfig={self._control_plane.credentials.kubeconfig('kube-proxy')}",
            f"--hostname-override={NODE_NAME}",
            "--proxy-mode=iptables",
            f"--cluster-cidr={POD_RANGE}",
            "--conntrack-max-per-core=0",  # the machine's connection table is left as it is
            "--conntrack-min=0",
            "--metrics-bind-address=127.0.0.1:10249",
            "--healthz-bind-address=127.0.0.1:10256",
        ]
        self._control_plane.start_server("kube-proxy", arguments)

    def _start_dns(self) -> None:
        self._control_plane.kubectl("apply", "-f", "-", stdin=_DNS_RIGHTS)
        config = self._state / "Corefile"
        kubeconfig = self._control_plane.credentials.kubeconfig("coredns")
        config.write_text(_DNS_CONFIG.format(address=NODE_ADDRESS, ready_port=_DNS_READY_PORT, kubeconfig=kubeconfig))
        self._control_plane.start_server("coredns", [f"-conf={config}"])

    def _is_ready(self) -> bool:
        answer = self._control_plane.get(f"/api/v1/nodes/{NODE_NAME}")
        if answer is None:  # it has not registered yet
            return False
        node = json.loads(answer)
        conditions = {condition["type"]: condition["status"] for condition in node["status"].get("conditions", [])}
        return conditions.get("Ready") == "True"

    def _dns_is_ready(self) -> bool:
        connection = HTTPConnection(NODE_ADDRESS, _DNS_READY_PORT, timeout=2)
        try:
            connection.request("GET", "/ready")
            return connection.getresponse().status == HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()


def containerd_socket(state: Path) -> Path:
    return state / "containerd" / "containerd.sock"


def containerd_config(state: Path) -> str:
    programs = next((folder for folder in CNI_FOLDERS if (folder / "ptp").exists()), CNI_FOLDERS[0])
    socket = containerd_socket(state)
    return _CONTAINERD_CONFIG.format(state=state, socket=socket, pause=PAUSE_IMAGE, cni_programs=programs)


def pod_network(state: Path) -> dict[str, object]:
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": POD_RANGE}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": f"{state}/pod-addresses",
    }
    connection = {"type": "ptp", "ipMasq": False, "ipam": addresses}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "plimsoll", "plugins": [connection, ports]}


def kubelet_config(state: Path, authority: Path) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_ADDRESS,
        "healthzBindAddress": "127.0.0.1",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDNS": [NODE_ADDRESS],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{state}/resolv.conf",
        "containerRuntimeEndpoint": f"unix://{containerd_socket(state)}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroups.NAME}",
        "failCgroupV1": False,  # refused by default since 1.35, and still what many machines have
        "failSwapOn": False,
        "oomScoreAdj": 0,  # lowering it is forbidden on some machines
        # The node is also someone's machine: no limits on what is not a pod, and no evictions because its disk is full.
        "enforceNodeAllocatable": [],
        "evictionHard": {},
        "imageGCHighThresholdPercent": 100,  # images cannot be pulled again
        "maxPods": 60,
        "podLogsDir": f"{state}/pod-logs",
    }
