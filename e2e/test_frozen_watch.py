"""A connection that dies in silence, as behind a firewall that forgets: the operator's watch is noticed and made anew.

The operator is a process of this machine; between it and the API server is a proxy that stops passing bytes on.
"""

import json
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from plimsoll_cluster import open_control_plane
from plimsoll_cluster.binaries import OF_CONTROL_PLANE, find_binaries

from live_site import Site
from operator_process import Installed, install_chart, running_operator

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@dataclass
class Proxy:
    """Passes TCP connections on to `target`. Frozen ones stay open, and nothing passes through them any more."""

    target: tuple[str, int]
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    pairs: list[tuple[socket.socket, socket.socket]] = field(default_factory=list)
    frozen: int = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listener.getsockname()[1]}"

    def serve(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:  # the listener is closed
                return
            pair = client, socket.create_connection(self.target)
            number = len(self.pairs)
            self.pairs.append(pair)
            threading.Thread(target=self._pass_on, args=(number, pair), daemon=True).start()

    def freeze(self) -> int:
        """Every connection of this moment, and no later one. Returns how many."""
        self.frozen = len(self.pairs)
        return self.frozen

    def _pass_on(self, number: int, pair: tuple[socket.socket, socket.socket]) -> None:
        with selectors.DefaultSelector() as ready, suppress(OSError):
            for here, there in (pair, pair[::-1]):
                ready.register(here, selectors.EVENT_READ, there)
            while True:
                for key, _ in ready.select():
                    if number < self.frozen:
                        return
                    data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                    if not data:
                        pair[0].close()
                        pair[1].close()
                        return
                    key.data.sendall(data)

    def close(self) -> None:
        self.listener.close()
        for each in self.pairs:
            for end in each:
                end.close()


@contextmanager
def between(installed: Installed, folder: Path) -> Iterator[tuple[Installed, Proxy]]:
    """The operator's way to the API server through a proxy."""
    content = yaml.safe_load(installed.kubeconfig.read_text())
    server = content["clusters"][0]["cluster"]
    target = urlsplit(server["server"])
    proxy = Proxy((str(target.hostname), int(target.port or 443)))
    thread = threading.Thread(target=proxy.serve)
    thread.start()
    server["server"] = f"https://{proxy.address}"
    through = folder / "through-proxy.kubeconfig"
    through.write_text(yaml.safe_dump(content))
    try:
        yield Installed(through, installed.flags), proxy
    finally:
        proxy.listener.shutdown(socket.SHUT_RDWR)
        proxy.close()
        thread.join()


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
            site.wait(lambda: flags(site) != [], lambda: "no Deployment comes")
            assert proxy.freeze() > 0
            site.apply(maxOutput={"default": 99, "limit": 1024})
            site.wait(lambda: "--max-output-default=99" in flags(site), lambda: "the edit is not seen", 180)
            assert operator.is_healthy()


def flags(site: Site) -> list[str]:
    """Of the Deployment's runtime; nothing while there is none."""
    found = json.loads(site.kubectl("get", "deployments", "--output=json"))["items"]
    return [word for each in found for word in each["spec"]["template"]["spec"]["containers"][0]["args"]]
