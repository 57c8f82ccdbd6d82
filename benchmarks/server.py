"""Servers under measurement, each in a process of its own.

Owns starting, waiting and stopping. `PlimsollServer` is the product as a user starts it; `OverheadServer` is one of the
programs of overhead_app.py, which have no model; llama_programs.py has llama.cpp's.
"""

import asyncio
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from clients import stream_all
from plimsoll_runtime.contract.command_line import render_flags
from plimsoll_runtime.contract.config import RuntimeConfig
from plimsoll_runtime.contract.endpoints import READYZ
from timing import StreamTiming, peak_resident_bytes

READY_SECONDS = 300
STOP_SECONDS = 60


class ServedEngine:
    """A server in a process of its own that answers completions over HTTP, as an `Engine`."""

    def __init__(self, name: str, model: str, command: Sequence[str], url: str, ready_path: str) -> None:
        """`model` is the name that requests carry; it is ready when `ready_path` answers 200."""
        self.name = name
        self._model = model
        self.url = url
        start = time.perf_counter()
        self._process = subprocess.Popen(command)
        try:
            self._wait_until_ready(f"{url}{ready_path}")
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        self.start_seconds = time.perf_counter() - start

    @property
    def process_id(self) -> int:
        return self._process.pid

    def stream(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[StreamTiming]:
        return asyncio.run(stream_all(self.url, self._model, prompts, num_tokens))

    def peak_resident_bytes(self) -> int:
        return peak_resident_bytes(self._process.pid)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_until_ready(self, url: str) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not _is_ready(url):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} was not ready; its exit code is {self._process.returncode}")
            time.sleep(0.02)


class PlimsollServer(ServedEngine):
    """`plimsoll serve` with this configuration."""

    def __init__(self, config: RuntimeConfig) -> None:
        command = [sys.executable, "-m", "plimsoll_runtime", "serve", *render_flags(config)]
        url = f"http://127.0.0.1:{config.port}"
        super().__init__("plimsoll", str(config.served_model_name), command, url, READYZ)


class OverheadServer:
    """One of overhead_app.py's programs; `url` answers POST requests with `body`."""

    def __init__(self, name: str) -> None:
        program = Path(__file__).with_name("overhead_app.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            raise RuntimeError(f"overhead_app.py {name} did not start; its exit code is {self._process.wait()}")

    def stop(self) -> None:
        self._process.communicate("")  # the end of its input ends it


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
