"""`plimsoll fetch` against a hub on loopback: what it takes, how it goes on, and what it says when it cannot."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from doubles.hub import Hub, running_hub
from plimsoll_runtime.contract.hub_source import parse_hub_source
from plimsoll_runtime.contract.last_words import TERMINATION_LOG_VARIABLE
from plimsoll_runtime.fetch import FetchError, choose_files
from plimsoll_runtime.fetched_folder import OWN_FOLDER, HubFile
from plimsoll_runtime.models.weights.checkpoint import CheckpointError, open_checkpoint

CHUNK = 10 << 20  # the library writes a file in such pieces
SHARD = "model-00002-of-00002.safetensors"
SMALL = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"w" * 5000}
SECRET = "hf_neverShownAnywhere"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub(SMALL) as running:
        yield running


class Fetch:
    """One run of the command, with no more of this machine's environment than it needs."""

    def __init__(self, hub: Hub, into: Path, source: str = "hf://org/tiny", **environment: str) -> None:
        self.message = into.parent / "termination-log"
        variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(into.parent),
            "HF_ENDPOINT": hub.url,
            "HF_HUB_DISABLE_TELEMETRY": "1",  # as in the image: the hub is asked for the model and nothing else
            TERMINATION_LOG_VARIABLE: str(self.message),
            **environment,
        }
        words = [sys.executable, "-m", "plimsoll_runtime.contract.commands", "fetch", "--source", source]
        self.process = subprocess.Popen(
            [*words, "--into", str(into)], env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def end(self) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        output, error = self.process.communicate(timeout=60)
        return self.process.returncode, output, error


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name != OWN_FOLDER}


def test_a_model_is_fetched_once_and_only_what_a_server_reads(hub: Hub, tmp_path: Path) -> None:
    hub.files |= {
        "pytorch_model.bin": b"pickle",
        "consolidated.safetensors": b"again",
        "README.md": b"words",
        "onnx/config.json": b"{}",
        "chat_template.jinja": b"{{ messages }}",
    }
    into = tmp_path / "model"
    code, output, _ = Fetch(hub, into).end()
    assert code == 0
    assert names(into) == {*SMALL, "chat_template.jinja"}
    assert (into / "model.safetensors").read_bytes() == SMALL["model.safetensors"]
    assert "model.safetensors is here" in output
    hub.seen.clear()
    code, output, _ = Fetch(hub, into).end()
    assert (code, hub.seen) == (0, [])  # a hub that is down stops no pod that has its model
    assert "already" in output


def test_b94_a_killed_download_goes_on_where_it_stopped(hub: Hub, tmp_path: Path) -> None:
    """Elsewhere a restart began with missing shards, and the server answered from weights that were never written."""
    content = os.urandom(CHUNK + 3_000_000)
    hub.files[SHARD] = content
    hub.hold_after = CHUNK + 1_000_000
    into = tmp_path / "model"
    first = Fetch(hub, into)
    parts = into / OWN_FOLDER / "parts"
    wait_for(lambda: parts.is_dir() and any(part.stat().st_size >= CHUNK for part in parts.iterdir()))
    wait_for(lambda: "config.json" in names(into))  # files come side by side, in no order
    first.process.kill()
    first.end()
    assert SHARD not in names(into)
    with pytest.raises(CheckpointError):
        open_checkpoint(into)
    hub.hold_after = None
    hub.seen.clear()
    code, output, _ = Fetch(hub, into).end()
    assert code == 0
    assert [request.range for request in hub.asked_for(SHARD)] == [f"bytes={CHUNK}-"]
    assert hub.asked_for("config.json") == []
    assert (into / SHARD).read_bytes() == content
    assert f"{SHARD} goes on after 10.49 MB" in output


def test_b94_a_connection_that_breaks_is_taken_up_in_the_same_run(hub: Hub, tmp_path: Path) -> None:
    hub.files[SHARD] = content = os.urandom(CHUNK + 1_000_000)
    hub.cut_after = CHUNK + 500_000
    code, _, _ = Fetch(hub, tmp_path / "model").end()
    assert code == 0
    assert [request.range for request in hub.asked_for(SHARD)] == [None, f"bytes={CHUNK}-"]
    assert (tmp_path / "model" / SHARD).read_bytes() == content


def test_b94_a_file_that_lost_its_end_is_fetched_again(hub: Hub, tmp_path: Path) -> None:
    into = tmp_path / "model"
    Fetch(hub, into).end()
    (into / "model.safetensors").write_bytes(b"w")
    hub.seen.clear()
    assert Fetch(hub, into).end()[0] == 0
    assert len(hub.asked_for("model.safetensors")) == 1
    assert hub.asked_for("config.json") == []
    assert (into / "model.safetensors").read_bytes() == SMALL["model.safetensors"]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_b94_damaged_content_never_gets_its_name(name: str, hub: Hub, tmp_path: Path) -> None:
    hub.damage = True
    code, _, error = Fetch(hub, tmp_path / "model").end()
    assert code == 1
    assert "came damaged and was thrown away" in error
    assert names(tmp_path / "model") == set()
    hub.damage = False
    assert Fetch(hub, tmp_path / "model").end()[0] == 0
    assert (tmp_path / "model" / name).read_bytes() == SMALL[name]


def test_another_revision_replaces_what_differs_and_removes_what_is_gone(hub: Hub, tmp_path: Path) -> None:
    into = tmp_path / "model"
    hub.files["generation_config.json"] = b"{}"
    Fetch(hub, into).end()
    (into / "note.txt").write_text("not ours")
    hub.commit, hub.revisions = "d" * 40, ("main", "v2")
    hub.files = {**SMALL, "model.safetensors": b"x" * 5000}  # of the same size
    hub.seen.clear()
    assert Fetch(hub, into, "hf://org/tiny@v2").end()[0] == 0
    assert (into / "model.safetensors").read_bytes() == b"x" * 5000
    assert names(into) == {*SMALL, "note.txt"}
    assert hub.asked_for("config.json") == []


def test_sigterm_ends_it_at_once_and_keeps_what_has_come(hub: Hub, tmp_path: Path) -> None:
    hub.files[SHARD] = os.urandom(CHUNK)
    hub.hold_after = 1_000_000
    run = Fetch(hub, tmp_path / "model")
    wait_for(lambda: bool(hub.asked_for(SHARD)))
    run.process.send_signal(signal.SIGTERM)
    code, output, _ = run.end()
    assert code == 128 + signal.SIGTERM
    assert "told to stop" in output


GGUF = {f"tiny-{name}.gguf": name.encode() for name in ("Q4_0", "Q8_0", "BF16-00001-of-00002", "BF16-00002-of-00002")}


@pytest.mark.parametrize(
    ("source", "fetched"),
    [
        ("hf://org/tiny/tiny-Q8_0.gguf", {"tiny-Q8_0.gguf"}),
        ("hf://org/tiny/tiny-Q8_0.gguf@main", {"tiny-Q8_0.gguf"}),
        (
            "hf://org/tiny/tiny-BF16-00001-of-00002.gguf",
            {"tiny-BF16-00001-of-00002.gguf", "tiny-BF16-00002-of-00002.gguf"},
        ),
    ],
)
def test_a_gguf_model_is_its_file_or_all_its_parts(source: str, fetched: set[str], hub: Hub, tmp_path: Path) -> None:
    hub.files = dict(GGUF)
    assert Fetch(hub, tmp_path / "model", source).end()[0] == 0
    assert names(tmp_path / "model") == fetched


REFUSED: Mapping[str, tuple[str, Mapping[str, object], str]] = {
    "unknown repository": ("hf://org/other", {}, "no such repository, or not for this token"),
    "unknown revision": ("hf://org/tiny@v9", {}, "no revision v9: change spec.model.revision"),
    "no token": ("hf://org/tiny", {"token": "other"}, "spec.model.tokenSecretRef"),
    "terms": ("hf://org/tiny", {"gated": True}, "wants its terms accepted"),
    "pickles": ("hf://org/tiny", {"files": {"pytorch_model.bin": b"p"}}, "pickles alone, which are never loaded"),
    "a way out": ("hf://org/tiny", {"files": {**SMALL, "../x.json": b"{}"}}, "does not list ../x.json as a hub does"),
    "no hub": ("hf://org/tiny", {"url": "http://127.0.0.1:9"}, "http://127.0.0.1:9: ConnectError"),
    "not a source": ("https://org/tiny", {}, "not on a hub; write hf://org/name"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_had_is_one_sentence_there_and_in_the_termination_message(
    name: str, hub: Hub, tmp_path: Path
) -> None:
    source, changes, expected = REFUSED[name]
    for attribute, value in changes.items():
        setattr(hub, attribute, value)
    run = Fetch(hub, tmp_path / "model", source, HF_TOKEN=SECRET)
    code, output, error = run.end()
    assert code == 1
    assert expected in error
    assert source in error
    assert error.count("\n") == 1
    assert run.message.read_text() == error.removeprefix("plimsoll fetch: ").rstrip("\n")
    assert SECRET not in output + error


def test_the_token_is_sent_and_never_shown(hub: Hub, tmp_path: Path) -> None:
    hub.token = SECRET
    run = Fetch(hub, tmp_path / "model", HF_TOKEN=f"{SECRET}\n")
    command = Path(f"/proc/{run.process.pid}/cmdline").read_bytes()
    code, output, error = run.end()
    assert code == 0, error
    assert {request.authorization for request in hub.seen} == {f"Bearer {SECRET}"}
    assert SECRET not in output + error
    assert SECRET.encode() not in command
    assert not [
        path for path in (tmp_path / "model").rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()
    ]


@pytest.mark.parametrize(
    ("source", "files", "expected"),
    [
        ("hf://org/tiny", ["README.md", "consolidated.safetensors"], "no safetensors of the Hugging Face layout"),
        ("hf://org/tiny", [*GGUF, "config.json"], "so name one: hf://org/tiny/tiny-Q4_0.gguf; it has tiny-Q4_0.gguf, "),
        ("hf://org/tiny/x.gguf", [*GGUF], "no x.gguf; its GGUF files: tiny-Q4_0.gguf, tiny-Q8_0.gguf"),
        ("hf://org/tiny/a-00001-of-00002.gguf", ["a-00001-of-00002.gguf"], "no a-00002-of-00002.gguf"),
        ("hf://org/tiny", [f"{number}.gguf" for number in range(9)], "4.gguf and 4 more"),
    ],
)
def test_a_repository_without_the_model_says_what_it_has(source: str, files: list[str], expected: str) -> None:
    listed = [HubFile(name, 1, "0" * 40) for name in files]
    with pytest.raises(FetchError, match=re.escape(expected)):
        choose_files(parse_hub_source(source), listed)


def test_two_pods_that_share_a_volume_fetch_once(hub: Hub, tmp_path: Path) -> None:
    runs = [Fetch(hub, tmp_path / "model") for _ in range(2)]
    assert [run.end()[0] for run in runs] == [0, 0]
    assert len(hub.asked_for("model.safetensors")) == 1


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
