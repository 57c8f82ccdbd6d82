"""Keys, certificates, tokens and kubeconfigs of one cluster, made new for each and kept in its state folder.

One certificate authority signs the API server's serving certificate and its client certificate for the kubelet. Every
other party shows a random token: who it is stands in the token file, what it may do is RBAC's business.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from plimsoll_cluster.commands import run

NODE_NAME = "plimsoll-node"
_VALID_DAYS = "30"


@dataclass(frozen=True, slots=True)
class Party:
    """Someone who talks to the API server; `name` is also the name of its kubeconfig file."""

    name: str
    user: str
    groups: tuple[str, ...] = ()


ADMIN = Party("admin", "plimsoll:admin", ("system:masters",))
PARTIES = (
    ADMIN,
    Party("kube-controller-manager", "system:kube-controller-manager"),
    Party("kube-scheduler", "system:kube-scheduler"),
    Party("kubelet", f"system:node:{NODE_NAME}", ("system:nodes",)),
    Party("kube-proxy", "system:kube-proxy"),
    Party("coredns", "plimsoll:coredns"),
)


class Credentials:
    """The files in `folder`; `make` writes them all, the names below are where they are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = folder / "ca.crt"
        self.authority_key = folder / "ca.key"
        self.serving = folder / "apiserver.crt"
        self.serving_key = folder / "apiserver.key"
        self.kubelet_client = folder / "kubelet-client.crt"
        self.kubelet_client_key = folder / "kubelet-client.key"
        self.account_key = folder / "service-accounts.key"
        self.account_public_key = folder / "service-accounts.pub"
        self.tokens = folder / "tokens.csv"

    def kubeconfig(self, party: Party | str) -> Path:
        name = party if isinstance(party, str) else party.name
        return self.folder / f"{name}.kubeconfig"

    def token(self, party: Party) -> str:
        kubeconfig = yaml.safe_load(self.kubeconfig(party).read_text())
        return str(kubeconfig["users"][0]["user"]["token"])

    def make(self, server: str, addresses: Sequence[str]) -> None:
        """`server`: the URL in the kubeconfigs; `addresses`: the IP addresses at which the API server is reached."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._make_authority()
        services = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        names = [f"DNS:{name}" for name in ("localhost", *services, "kubernetes.default.svc.cluster.local")]
        names += [f"IP:{address}" for address in addresses]
        self._sign(self.serving, "/CN=kube-apiserver", f"subjectAltName={','.join(names)}")
        self._sign(self.kubelet_client, "/O=system:masters/CN=kube-apiserver", "extendedKeyUsage=clientAuth")
        run(["openssl", "genrsa", "-out", self.account_key, "2048"])
        run(["openssl", "rsa", "-in", self.account_key, "-pubout", "-out", self.account_public_key])
        self._write_tokens(server)

    def _make_authority(self) -> None:
        self._make_key(self.authority_key)
        command = ["openssl", "req", "-x509", "-new", "-key", f"{self.authority_key}", "-days", _VALID_DAYS]
        usage = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
        run([*command, *usage, "-subj", "/CN=plimsoll-cluster", "-out", f"{self.authority}"])

    def _sign(self, certificate: Path, subject: str, extension: str) -> None:
        key = certificate.with_suffix(".key")
        self._make_key(key)
        request = run(["openssl", "req", "-new", "-key", key, "-subj", subject])
        extensions = certificate.with_suffix(".ext")
        # Who signed it must stand in it: Python's ssl is strict about that since 3.13.
        extensions.write_text(f"{extension}\nbasicConstraints=CA:FALSE\nauthorityKeyIdentifier=keyid\n")
        authority = ["-CA", f"{self.authority}", "-CAkey", f"{self.authority_key}", "-CAcreateserial"]
        command = ["openssl", "x509", "-req", *authority, "-days", _VALID_DAYS]
        run([*command, "-extfile", extensions, "-out", certificate], stdin=request)

    def _make_key(self, key: Path) -> None:
        run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key])

    def _write_tokens(self, server: str) -> None:
        rows = []
        for party in PARTIES:
            token = secrets.token_hex(24)
            rows.append(token_row(party, token))
            kubeconfig = kubeconfig_for(party.user, token, server, self.authority)
            write_private(self.kubeconfig(party), yaml.safe_dump(kubeconfig))
        write_private(self.tokens, "".join(rows))


def token_row(party: Party, token: str) -> str:
    groups = f',"{",".join(party.groups)}"' if party.groups else ""
    return f"{token},{party.user},{party.name}{groups}\n"


def kubeconfig_for(user: str, token: str, server: str, authority: Path) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "plimsoll", "cluster": {"server": server, "certificate-authority": str(authority)}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "plimsoll", "context": {"cluster": "plimsoll", "user": user}}],
        "current-context": "plimsoll",
    }


def write_private(file: Path, content: str) -> None:
    file.touch(mode=0o600)
    file.write_text(content)
