"""`/healthz`: whether the operator still works, answered by a thread that does not depend on what it judges.

Owns the endpoint and the bounds. In: facts that are read when it is asked. Out: 200, or 503 with a sentence. Invariant:
it is answered while the event loop is stuck, and a process that waits for its Lease is healthy.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

PATH: Final = "/healthz"
Judge = Callable[[], str | None]
"""One sentence for why the process should be restarted, or None."""


@contextmanager
def health_server(port: int, judge: Judge) -> Iterator[int]:
    """Answers within the block; gives the port, which is a free one for 0."""
    server = ThreadingHTTPServer(("", port), _handler(judge))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="health", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(judge: Judge) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            fault = judge() if self.path.partition("?")[0] == PATH else "there is only /healthz"
            status = 200 if fault is None else 404 if self.path.partition("?")[0] != PATH else 503
            body = f"{'ok' if fault is None else fault}\n".encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Probes are not logged."""

    return Handler
