"""Answers every GET with the name of its pod."""

import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import FrameType

import yaml


class PodName(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = yaml.safe_dump({"pod": os.environ.get("HOSTNAME")}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def end(number: int, _: FrameType | None) -> None:
    sys.exit(0 if number == signal.SIGTERM else 1)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end)
    print("serving", flush=True)
    ThreadingHTTPServer(("", 8000), PodName).serve_forever()
