"""A way to the API server that can fall silent, as behind a firewall that forgets connections: no byte, no end."""

import math
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from operator_process import Installed


@dataclass
class Proxy:
    """Passes TCP connections on to `target`. Frozen ones stay open, and nothing passes through them any more."""

    target: tuple[str, int]
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    pairs: list[tuple[socket.socket, socket.socket]] = field(default_factory=list)
    frozen: float = 0

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
        return int(self.frozen)

    def cut_off(self) -> None:
        """Every connection of this moment, and every later one, until `let_new_ones_pass`."""
        self.frozen = math.inf

    def let_new_ones_pass(self) -> None:
        self.freeze()

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
