"""etcd, kube-apiserver and the two controllers: command lines and start order. No container, and no need of root.

Ports and addresses come in as a `Site`: free loopback ports for the API server alone, the cluster's own network
namespace for a whole cluster. The API server writes an audit log of what everyone but Kubernetes itself did.
"""

import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPSConnection
from pathlib import Path

import yaml

from plimsoll_cluster.commands import run
from plimsoll_cluster.credentials import ADMIN, Credentials
from plimsoll_cluster.processes import ProcessTable

SERVICE_RANGE = "10.96.0.0/16"
POD_RANGE = "10.244.0.0/24"
KUBERNETES_SERVICE = "10.96.0.1"
_LOOPBACK = "127.0.0.1"
_START_SECONDS = 120

# Kubernetes talks to itself all the time; what is left are the clients whose rights a test may ask about.
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "userGroups": ["system:nodes", "system:serviceaccounts:kube-system"]},
        {
            "level": "None",
            "users": [
                "system:apiserver",
                "system:kube-controller-manager",
                "system:kube-scheduler",
                "system:kube-proxy",
            ],
        },
        {"level": "None", "users": ["plimsoll:coredns"]},
        {"level": "None", "nonResourceURLs": ["/healthz*", "/livez*", "/readyz*"]},
        {"level": "Metadata"},
    ],
}


@dataclass(frozen=True, slots=True)
class Site:
    """Where the control plane listens. `prefix` goes before every command (to enter a network namespace)."""

    api_address: str
    api_port: int
    etcd_port: int
    etcd_peer_port: int
    prefix: tuple[str, ...] = ()
    ends_with_parent: bool = False

    @property
    def server(self) -> str:
        return f"https://{self.api_address}:{self.api_port}"

    @property
    def is_loopback(self) -> bool:
        return self.api_address == _LOOPBACK


def loopback_site(*, ends_with_parent: bool) -> Site:
    api, etcd, peer = _free_ports(3)
    return Site(_LOOPBACK, api, etcd, peer, ends_with_parent=ends_with_parent)


class ControlPlane:
    def __init__(self, binaries: Path, state: Path, site: Site) -> None:
        self.binaries = binaries
        self.state = state
        self.site = site
        self.credentials = Credentials(state / "credentials")
        self.processes = ProcessTable(state)
        self.audit_log = state / "audit.log"

    def start(self) -> None:
        """Returns when the API server is ready."""
        self.credentials.make(self.site.server, [_LOOPBACK, KUBERNETES_SERVICE, self.site.api_address])
        policy = self.state / "audit-policy.yaml"
        policy.write_text(yaml.safe_dump(_AUDIT_POLICY))
        self.start_server("etcd", etcd_arguments(self.site, self.state / "etcd"))
        self.start_server("kube-apiserver", self._apiserver_arguments(policy))
        self.processes.wait_until(
            "the API server is ready", self._is_ready, blame="kube-apiserver", timeout_seconds=_START_SECONDS
        )

    def start_controllers(self, *, with_scheduler: bool) -> None:
        """Returns when the controllers work: only then does a new namespace accept pods."""
        self.start_server("kube-controller-manager", self._controller_manager_arguments())
        if with_scheduler:
            kubeconfig = self.credentials.kubeconfig("kube-scheduler")
            authorizer = [f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}"]
            scheduler = [f"--kubeconfig={kubeconfig}", *authorizer, "--leader-elect=false", "--secure-port=0"]
            self.start_server("kube-scheduler", scheduler)
        self.processes.wait_until(
            "the controllers work",
            lambda: self.get("/api/v1/namespaces/default/serviceaccounts/default") is not None,
            blame="kube-controller-manager",
            timeout_seconds=_START_SECONDS,
        )

    def start_server(self, name: str, arguments: Sequence[str]) -> None:
        """Starts one of our own programs at this site."""
        command = [*self.site.prefix, f"{self.binaries}/{name}", *arguments]
        self.processes.start(name, command, ends_with_parent=self.site.ends_with_parent)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Runs kubectl as the cluster's administrator; raises ClusterError with its complaint."""
        kubeconfig = f"--kubeconfig={self.credentials.kubeconfig(ADMIN)}"
        return run([self.binaries / "kubectl", kubeconfig, *arguments], stdin=stdin)

    def get(self, path: str) -> bytes | None:
        """The answer of the API server to GET `path`, None unless it is 200. Cheaper than kubectl, for polling."""
        trust = ssl.create_default_context(cafile=self.credentials.authority)
        connection = HTTPSConnection(self.site.api_address, self.site.api_port, timeout=5, context=trust)
        try:
            token = self.credentials.token(ADMIN)
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            return answer.read() if answer.status == HTTPStatus.OK else None
        except OSError:
            return None
        finally:
            connection.close()

    def _is_ready(self) -> bool:
        return self.get("/readyz") == b"ok"

    def _apiserver_arguments(self, audit_policy: Path) -> list[str]:
        keys = self.credentials
        return [
            f"--etcd-servers=http://{_LOOPBACK}:{self.site.etcd_port}",
            f"--bind-address={self.site.api_address}",
            f"--advertise-address={self.site.api_address}",
            f"--secure-port={self.site.api_port}",
            # A loopback address cannot be an endpoint of the `kubernetes` Service, and no pod is there to use it.
            f"--endpoint-reconciler-type={'none' if self.site.is_loopback else 'lease'}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--authorization-mode=Node,RBAC",
            # Some clusters guard owner references, and an operator that lacks the right to set them works elsewhere.
            "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
            "--allow-privileged=true",
            f"--client-ca-file={keys.authority}",
            f"--tls-cert-file={keys.serving}",
            f"--tls-private-key-file={keys.serving_key}",
            f"--token-auth-file={keys.tokens}",
            f"--kubelet-client-certificate={keys.kubelet_client}",
            f"--kubelet-client-key={keys.kubelet_client_key}",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={keys.account_public_key}",
            f"--service-account-signing-key-file={keys.account_key}",
            f"--audit-policy-file={audit_policy}",
            f"--audit-log-path={self.audit_log}",
        ]

    def _controller_manager_arguments(self) -> list[str]:
        keys = self.credentials
        kubeconfig = keys.kubeconfig("kube-controller-manager")
        return [
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--use-service-account-credentials=true",
            f"--root-ca-file={keys.authority}",
            f"--service-account-private-key-file={keys.account_key}",
            f"--cluster-signing-cert-file={keys.authority}",
            f"--cluster-signing-key-file={keys.authority_key}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--leader-elect=false",
            "--secure-port=0",
        ]


def etcd_arguments(site: Site, data: Path) -> list[str]:
    client, peer = (f"http://{_LOOPBACK}:{port}" for port in (site.etcd_port, site.etcd_peer_port))
    return [
        f"--data-dir={data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",  # nothing here outlives the machine
        "--log-level=warn",
    ]


def _free_ports(number: int) -> list[int]:
    """Ports that were free a moment ago; all are held open together, so that they differ."""
    sockets = [socket.create_server((_LOOPBACK, 0)) for _ in range(number)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
