"""`make demo`: serves a manifest on this machine, asks each route once, and shows what was answered and granted.

In: the path of a manifest with one server. Out: a table, and exit code 0 when all four routes answered and the server
stopped cleanly. The requests go through the official clients, so what is shown is what a user of them gets.
"""

import contextlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anthropic
import openai
import yaml

from plimsoll_runtime.contract import endpoints

QUESTION: Final = "What is the capital of France? Answer in one sentence."
READY_SECONDS: Final = 300
STOP_SECONDS: Final = 60
ANSWER_WIDTH: Final = 64
HEADINGS: Final = ("route", "asked for", "granted", "limited by", "prompt tokens", "answer")


@dataclass(frozen=True)
class Row:
    """One request: what it asked for, what it was granted, and what came back."""

    route: str
    asked: str
    headers: Mapping[str, str]
    text: str

    def cells(self) -> tuple[str, ...]:
        text = " ".join(self.text.split())
        shown = text if len(text) <= ANSWER_WIDTH else f"{text[: ANSWER_WIDTH - 1]}…"
        names = (endpoints.HEADER_MAX_OUTPUT_TOKENS, endpoints.HEADER_LIMITED_BY, endpoints.HEADER_PROMPT_TOKENS)
        return (self.route, self.asked, *(self.headers[name] for name in names), shown)


def main(manifest: str) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the server is stopped
    port = free_port()
    with running_server(manifest, port) as server:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(url, server)
        rows = ask_every_route(url, served_name(manifest))
    print_table(rows)
    print(f"\nThe server stopped with exit code {server.returncode}. `make serve` leaves one running.")
    return 0 if server.returncode == 0 and all(row.text.strip() for row in rows) else 1


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def served_name(manifest: str) -> str:
    server = next(yaml.safe_load_all(Path(manifest).read_text(encoding="utf-8")))
    return str(server["spec"]["model"].get("servedName", server["metadata"]["name"]))


@contextlib.contextmanager
def running_server(manifest: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """`plimsoll up` in the background; on the way out it is told to drain, and killed only if it does not."""
    command = [sys.executable, "-m", "plimsoll_runtime.contract.commands", "up", "-f", manifest, "--port", str(port)]
    print(f"plimsoll {' '.join(command[3:])}", flush=True)
    server = subprocess.Popen(command, start_new_session=True)
    try:
        yield server
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()  # takes what it started with it
            server.wait()


def wait_until_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    start = time.monotonic()
    next_word = 2.0
    while not is_ready(url):
        waited = time.monotonic() - start
        if server.poll() is not None:
            raise SystemExit(f"the server ended with exit code {server.returncode} before it was ready")
        if waited > READY_SECONDS:
            raise SystemExit(f"the server was not ready after {READY_SECONDS} s")
        if waited > next_word:
            print(f"waiting for {url}{endpoints.READYZ}: {waited:.0f} s", flush=True)
            next_word += 2.0
        time.sleep(0.1)
    print(f"ready after {time.monotonic() - start:.1f} s", flush=True)


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}{endpoints.READYZ}", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def ask_every_route(url: str, model: str) -> list[Row]:
    openai_client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    anthropic_client = anthropic.Anthropic(base_url=url, api_key="none")
    questions: list[Callable[[], Row]] = [
        lambda: ask_chat_completions(openai_client, model),
        lambda: ask_completions(openai_client, model),
        lambda: ask_messages(anthropic_client, model),
        lambda: ask_responses(openai_client, model),
    ]
    rows = []
    for question in questions:
        start = time.monotonic()
        rows.append(question())
        print(f"{rows[-1].route} answered after {time.monotonic() - start:.1f} s", flush=True)
    return rows


def ask_chat_completions(client: openai.OpenAI, model: str) -> Row:
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=[{"role": "user", "content": QUESTION}], temperature=0
    )
    return row(endpoints.CHAT_COMPLETIONS, "nothing", raw, str(raw.parse().choices[0].message.content))


def ask_completions(client: openai.OpenAI, model: str) -> Row:
    raw = client.completions.with_raw_response.create(
        model=model, prompt="The capital of France is", max_tokens=16, temperature=0
    )
    return row(endpoints.COMPLETIONS, "16", raw, raw.parse().choices[0].text)


def ask_messages(client: anthropic.Anthropic, model: str) -> Row:
    raw = client.messages.with_raw_response.create(
        model=model,
        max_tokens=8192,
        messages=[{"role": "user", "content": QUESTION}],
        # This client has no argument for it, and the API's newer version refuses it.
        extra_body={"temperature": 0},
        extra_headers={"anthropic-version": "2023-06-01"},
    )
    text = "".join(block.text for block in raw.parse().content if block.type == "text")
    return row(endpoints.MESSAGES, "8192", raw, text)


def ask_responses(client: openai.OpenAI, model: str) -> Row:
    raw = client.responses.with_raw_response.create(model=model, input=QUESTION, max_output_tokens=64, temperature=0)
    return row(endpoints.RESPONSES, "64", raw, raw.parse().output_text)


def row(route: str, asked: str, raw: Any, text: str) -> Row:
    return Row(route, asked, {name.lower(): value for name, value in raw.headers.items()}, text)


def print_table(rows: list[Row]) -> None:
    table = [HEADINGS, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(HEADINGS))]
    print()
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
