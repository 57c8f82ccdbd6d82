"""The folder that `plimsoll fetch` fills: what is in it, what is still on its way, and who fills it.

Owns the record beside the model, the parts of files, and the lock. In: what a hub lists. Out: whether the folder holds
a source as a whole. It knows no hub. Invariants: a file has its own name only when all its bytes have come and were
checked; the record says complete only when all files have; a record of another commit says nothing about content.
"""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

OWN_FOLDER: Final = ".plimsoll-fetch"
_CHUNK_BYTES: Final = 1 << 20


class DamagedFileError(Exception):
    """What came is not what the hub listed; the text is one sentence."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file as the hub lists it: a large one with its SHA-256, another with git's id of its content."""

    name: str
    num_bytes: int
    git_id: str
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """What the folder is meant to hold: `files` are the names and sizes of `source` at `commit`."""

    source: str = ""
    commit: str = ""
    complete: bool = False
    files: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FetchedFolder:
    """A folder on this machine or on a volume that several pods share."""

    path: Path

    @contextlib.contextmanager
    def alone(self, on_wait: Callable[[], None]) -> Iterator[None]:
        """One filler at a time, where the file system has locks; where it has none, the checks of content remain."""
        (self.path / OWN_FOLDER).mkdir(parents=True, exist_ok=True)
        with (self.path / OWN_FOLDER / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def record(self) -> Record:
        """The record, empty when there is none that can be read."""
        try:
            fields: dict[str, Any] = json.loads(self._record_path.read_text(encoding="utf-8"))
            return Record(**fields)
        except (OSError, ValueError, TypeError):
            return Record()

    def write_record(self, record: Record) -> None:
        new = self._record_path.with_suffix(".new")
        new.write_text(json.dumps(asdict(record)), encoding="utf-8")
        os.replace(new, self._record_path)

    def holds(self, source: str) -> bool:
        """Whether all of `source` lies here, by its record and the sizes of its files."""
        record = self.record()
        here = all(self._has(name, num_bytes) for name, num_bytes in record.files.items())
        return record.complete and record.source == source and here

    def missing(self, files: Sequence[HubFile], commit: str) -> list[HubFile]:
        """What has still to come. A file of another commit counts as missing unless its content is the same."""
        record = self.record()
        same = record.commit == commit
        return [file for file in files if not (self._has(file.name, file.num_bytes) and (same or self._is(file)))]

    def bytes_here(self, files: Sequence[HubFile]) -> int:
        """How much of `files` has come, parts of files included."""
        return sum(max(_size(self.path / file.name), _size(self._part(file))) for file in files)

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def complete_file(self, file: HubFile, bring: Callable[[BinaryIO, int], None]) -> None:
        """`bring` appends what is missing to the open part, of which it is told the size. Raises DamagedFileError."""
        part = self._part(file)
        part.parent.mkdir(parents=True, exist_ok=True)
        if _size(part) > file.num_bytes:
            part.unlink()
        with part.open("ab") as stream:
            bring(stream, stream.tell())
            stream.flush()
            os.fsync(stream.fileno())
        if not matches(part, file):
            part.unlink()
            raise DamagedFileError(f"{file.name} came damaged and was thrown away: the next start asks for it again")
        (self.path / file.name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(part, self.path / file.name)

    @property
    def _record_path(self) -> Path:
        return self.path / OWN_FOLDER / "record.json"

    def _has(self, name: str, num_bytes: int) -> bool:
        return (self.path / name).is_file() and _size(self.path / name) == num_bytes

    def _is(self, file: HubFile) -> bool:
        return matches(self.path / file.name, file)

    def _part(self, file: HubFile) -> Path:
        """Named for name and content, so that a part of another commit is never continued."""
        return self.path / OWN_FOLDER / "parts" / hashlib.sha256(f"{file.git_id} {file.name}".encode()).hexdigest()


def matches(path: Path, file: HubFile) -> bool:
    """Whether the content is what the hub lists."""
    if _size(path) != file.num_bytes:
        return False
    if file.sha256 is not None:
        return _digest(path, hashlib.sha256()) == file.sha256
    header = f"blob {file.num_bytes}\0".encode()
    return _digest(path, hashlib.sha1(header, usedforsecurity=False)) == file.git_id


def _digest(path: Path, digest: "hashlib._Hash") -> str:
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
