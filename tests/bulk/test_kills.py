"""2,000 requests over two servers; one server is killed and started again, the client is killed twice."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bulk.batch_lines import read_lines, request_line, write_lines
from doubles.server import scripted_server, wait_until

PROGRAM = Path(__file__).parent.parent / "doubles" / "scripted_process.py"
NUM_LINES = 2_000
SLOTS = 8
COMMAND = [sys.executable, "-m", "plimsoll_runtime.contract.commands", "bulk"]


def start_server(port: int = 0) -> tuple[subprocess.Popen[str], str]:
    options = {"context_length": 64, "running_slots": SLOTS, "step_seconds": 0.01, "port": port}
    process = subprocess.Popen([sys.executable, str(PROGRAM), json.dumps(options)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_after(client: "subprocess.Popen[Any]", path: Path, num_lines: int) -> None:
    wait_until(lambda: count_lines(path) >= num_lines or client.poll() is not None, seconds=100)
    assert client.poll() is None, "the job ended before it could be killed"
    client.kill()
    client.communicate()


@pytest.mark.timeout(300)
def test_two_thousand_answers_each_once(tmp_path: Path) -> None:
    lines = [request_line(f"line-{index}", 8 + index % 13) for index in range(NUM_LINES)]
    requests, answers = write_lines(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    other, other_url = start_server()
    try:
        with scripted_server(running_slots=SLOTS, before_step=lambda step: time.sleep(0.01)) as server:
            command = [*COMMAND, str(requests), str(answers), "--server", server.url, "--server", other_url]
            for num_lines in (400, 800):
                kill_after(subprocess.Popen(command, stderr=subprocess.DEVNULL), answers, num_lines)
            client = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            wait_until(lambda: count_lines(answers) > 1_000, seconds=100)
            other.kill()
            other.communicate()
            first_step = server.runner.num_steps
            wait_until(lambda: count_lines(answers) > 1_200, seconds=100)
            other, _ = start_server(int(other_url.rpartition(":")[2]))
            wait_until(lambda: count_lines(answers) > 1_900, seconds=100)
            steps = list(server.runner.steps)[-(server.runner.num_steps - first_step) :]
            _, said = client.communicate(timeout=100)
            assert client.returncode == 0, said
    finally:
        other.kill()
        other.communicate()
    found = read_lines(answers)
    assert sorted(line["custom_id"] for line in found) == sorted(line["custom_id"] for line in lines)
    granted = {line["custom_id"]: line["response"]["body"]["usage"]["completion_tokens"] for line in found}
    assert granted == {line["custom_id"]: line["body"]["max_completion_tokens"] for line in lines}
    busy = sum(len(chunks) for chunks in steps) / (SLOTS * len(steps))
    assert busy > 0.95, f"only {busy:.1%} of the slots computed in {len(steps)} steps"
