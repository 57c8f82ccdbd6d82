"""`plimsoll fetch`: brings a model from a Hugging Face hub into a folder; what has come is never asked for twice.

Owns the choice of files and the words for what goes wrong. In: a source, a folder, and the hub's address and token from
the environment (HF_ENDPOINT, HF_TOKEN). Out: the folder, and an exit code: 0 done, 1 could not (one sentence), 2 wrong
arguments. Invariants: an interrupted file goes on where it stopped; every file is checked against what the hub lists;
pickles are never fetched; the token is in no message. A folder that holds the source already is left as it is, without
a word to the hub: a branch that has moved meanwhile is another revision, to be named.
"""

import argparse
import errno
import fnmatch
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from types import FrameType
from typing import BinaryIO, Final

from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils.tqdm import disable_progress_bars

from plimsoll_runtime.contract.hub_source import HubSource, HubSourceError, parse_hub_source
from plimsoll_runtime.contract.last_words import give_up
from plimsoll_runtime.fetched_folder import DamagedFileError, FetchedFolder, HubFile, Record

TOKEN_VARIABLE: Final = "HF_TOKEN"
NUM_CONNECTIONS: Final = 4
PROGRESS_SECONDS: Final = 10.0
LISTING_SECONDS: Final = 30.0
BESIDE_WEIGHTS: Final = ("*.json", "*.jinja", "tokenizer.model", "*.tiktoken", "vocab.txt", "merges.txt")
"""Of the repository's root: configuration, tokenizer and chat template."""
SAME_WEIGHTS_AGAIN: Final = ("consolidated*.safetensors", "adapter_*.safetensors")
"""Another layout of the weights, or an addition to them; the runtime reads neither."""
PICKLES: Final = ("*.bin", "*.pt", "*.pth", "*.ckpt")
SPLIT_GGUF: Final = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf", re.IGNORECASE)


class FetchError(Exception):
    """Why the model cannot be had: one sentence for who wrote the manifest."""


def main(arguments: Sequence[str]) -> int:
    """Fetch, and return the exit code."""
    options = _parser().parse_args(list(arguments))
    signal.signal(signal.SIGTERM, _stop)
    disable_progress_bars()
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    try:
        fetch(parse_hub_source(options.source), Path(options.into), token)
    except (FetchError, HubSourceError) as error:
        return give_up("fetch", _without_secrets(str(error), token))
    return 0


def fetch(source: HubSource, into: Path, token: str) -> None:
    """Fills `into` with what `source` needs; `token` may be empty. Raises FetchError."""
    if not (token.isascii() and token.isprintable()):
        raise FetchError(f"{TOKEN_VARIABLE} is not a token: it holds characters that no header may carry")
    folder = FetchedFolder(into)
    try:
        with folder.alone(lambda: _say(f"{into} is being filled by another process, waiting")):
            _fill(folder, source, token)
    except FetchError:
        raise
    except Exception as error:
        raise FetchError(_sentence(source, into, error)) from error


def choose_files(source: HubSource, files: Sequence[HubFile]) -> list[HubFile]:
    """What the runtime reads of a repository. Raises FetchError when that is no model."""
    if source.file is not None:
        return _gguf_files(source, source.file, files)
    root = [file for file in files if "/" not in file.name]
    weights = [file for file in root if _fits(file, ("*.safetensors",)) and not _fits(file, SAME_WEIGHTS_AGAIN)]
    if not weights:
        raise FetchError(_no_weights(source, files))
    return [*(file for file in root if _fits(file, BESIDE_WEIGHTS)), *weights]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="plimsoll fetch",
        description="Bring a model from a Hugging Face hub into a folder, and go on where an earlier run stopped.",
        epilog=f"The hub is HF_ENDPOINT (default: {constants.ENDPOINT}). A token is read from {TOKEN_VARIABLE} alone.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--source",
        required=True,
        metavar="SOURCE",
        help="hf://org/name[@revision] or hf://org/name/FILE.gguf[@revision]",
    )
    add("--into", required=True, metavar="FOLDER", help="where it goes; made when it is not there")
    return parser


def _fill(folder: FetchedFolder, source: HubSource, token: str) -> None:
    if folder.holds(source.text):
        _say(f"{source.text} is in {folder.path} already")
        return
    commit, listed = _list_files(source, token)
    wanted = choose_files(source, listed)
    missing = folder.missing(wanted, commit)
    before = folder.record().files
    sizes = {file.name: file.num_bytes for file in wanted}
    folder.remove([file.name for file in missing])
    _check_room(folder, missing)
    folder.write_record(Record(source.text, commit, complete=False, files={**before, **sizes}))
    with _progress(folder, wanted), ThreadPoolExecutor(NUM_CONNECTIONS) as pool:
        for _ in pool.map(lambda file: _bring(folder, source, commit, file, token), missing):
            pass
    folder.remove([name for name in before if name not in sizes])
    folder.write_record(Record(source.text, commit, complete=True, files=sizes))
    _say(f"{source.text} is in {folder.path}, commit {commit}")


def _list_files(source: HubSource, token: str) -> tuple[str, list[HubFile]]:
    """The commit that the revision names now, and everything in it."""
    api = HfApi(token=token or False)
    revision = source.revision
    model = api.model_info(source.repository, revision=revision, files_metadata=True, timeout=LISTING_SECONDS)
    if model.sha is None or model.siblings is None:
        raise FetchError(f"{source.text}: {constants.ENDPOINT} does not list files as a hub does")
    return model.sha, [_listed(source, sibling) for sibling in model.siblings]


def _listed(source: HubSource, sibling: RepoSibling) -> HubFile:
    path = PurePosixPath(sibling.rfilename)
    if sibling.size is None or sibling.blob_id is None or path.is_absolute() or ".." in path.parts:
        raise FetchError(f"{source.text}: {constants.ENDPOINT} does not list {sibling.rfilename} as a hub does")
    return HubFile(sibling.rfilename, sibling.size, sibling.blob_id, sibling.lfs.sha256 if sibling.lfs else None)


def _bring(folder: FetchedFolder, source: HubSource, commit: str, file: HubFile, token: str) -> None:
    url = hf_hub_url(source.repository, file.name, revision=commit)
    headers = {"authorization": f"Bearer {token}"} if token else {}

    def append(stream: BinaryIO, resume_size: int) -> None:
        if resume_size:
            _say(f"{file.name} goes on after {_amount(resume_size)}")
        http_get(url, stream, resume_size=resume_size, headers=headers, expected_size=file.num_bytes)

    folder.complete_file(file, append)
    _say(f"{file.name} is here, {_amount(file.num_bytes)}")


def _gguf_files(source: HubSource, name: PurePosixPath, files: Sequence[HubFile]) -> list[HubFile]:
    """The named file, and with one part of a split model all its parts."""
    split = SPLIT_GGUF.fullmatch(str(name))
    names = {str(name)}
    if split is not None:
        stem, count = split.groups()
        names = {f"{stem}-{part:05}-of-{count}.gguf" for part in range(1, int(count) + 1)}
    absent = sorted(names - {file.name for file in files})
    if absent:
        there = [file.name for file in files if _fits(file, ("*.gguf",))]
        raise FetchError(f"{source.text}: the repository has no {absent[0]}; its GGUF files: {_some(there)}")
    return [file for file in files if file.name in names]


def _no_weights(source: HubSource, files: Sequence[HubFile]) -> str:
    gguf = [file.name for file in files if _fits(file, ("*.gguf",))]
    if gguf:
        return (
            f"{source.text}: the repository holds GGUF files, so name one: hf://{source.repository}/{gguf[0]}; "
            f"it has {_some(gguf)}"
        )
    if any(_fits(file, PICKLES) for file in files):
        return f"{source.text}: the repository holds pickles alone, which are never loaded; use safetensors or GGUF"
    return f"{source.text}: the repository holds no safetensors of the Hugging Face layout and no GGUF file"


def _fits(file: HubFile, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(file.name.lower(), pattern) for pattern in patterns)


def _some(names: Sequence[str]) -> str:
    return (", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")) or "none"


def _check_room(folder: FetchedFolder, missing: Sequence[HubFile]) -> None:
    needed = sum(file.num_bytes for file in missing) - folder.bytes_here(missing)
    free = shutil.disk_usage(folder.path).free
    if needed > free:
        raise FetchError(
            f"{_amount(needed)} have still to come and {folder.path} has {_amount(free)} free: raise "
            "spec.modelCache.size"
        )


@contextmanager
def _progress(folder: FetchedFolder, files: Sequence[HubFile]) -> Iterator[None]:
    """A line now and every few seconds, with what lies on the disk."""
    done = threading.Event()
    total = _amount(sum(file.num_bytes for file in files))

    def watch() -> None:
        while not done.wait(PROGRESS_SECONDS):
            _say(f"{_amount(folder.bytes_here(files))} of {total}")

    _say(f"{_amount(folder.bytes_here(files))} of {total} in {len(files)} files")
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _sentence(source: HubSource, into: Path, error: Exception) -> str:
    """What to do about it, as far as the error tells."""
    match error:
        case GatedRepoError():
            why = "the hub wants its terms accepted first, by the account whose token is in spec.model.tokenSecretRef"
        case RevisionNotFoundError():
            why = f"the repository has no revision {source.revision}: change spec.model.revision"
        case RepositoryNotFoundError():
            why = "no such repository, or not for this token: check spec.model.source and spec.model.tokenSecretRef"
        case OfflineModeIsEnabled():
            why = "HF_HUB_OFFLINE forbids to ask the hub: unset it"
        case HfHubHTTPError() if error.response.status_code in (401, 403):
            why = f"the hub refuses the token (status {error.response.status_code}): check spec.model.tokenSecretRef"
        case HfHubHTTPError():
            why = f"{constants.ENDPOINT} answered {error.response.status_code}; what has come is kept"
        case DamagedFileError():
            why = str(error)
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            why = f"{into} is full: raise spec.modelCache.size; what has come is kept"
        case OSError(filename=str() | bytes() as path):
            why = f"{path!r} cannot be written: {error.strerror}"
        case _:
            first_line = (str(error).splitlines() or [""])[0]
            why = f"{constants.ENDPOINT}: {type(error).__name__}: {first_line}; what has come is kept"
    return f"{source.text}: {why}"


def _without_secrets(text: str, token: str) -> str:
    """Without the token, and without what follows the `?` of an address: a signed one opens the file to its reader."""
    hidden = text.replace(token, "(token)") if token else text
    return re.sub(r"(https?://[^\s?'\"]+)\?[^\s'\"]*", r"\1", hidden)


def _amount(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.2f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:,.2f} MB"


def _say(text: str) -> None:
    print(f"plimsoll fetch: {text}", flush=True)


def _stop(number: int, frame: FrameType | None) -> None:
    """Process 1 has no default action for SIGTERM. What has come is on the disk, so nothing is left to do."""
    _say("told to stop; what has come is kept")
    os._exit(128 + number)
