"""A folder in which all experts of a model lie packed: each contiguous, aligned, with a checksum.

Owns that folder: shards of whole experts, `index.json` once all are there, `journal.txt` while they are written. In: a
layout, and a checkpoint to read from. Out: an `ExpertPack` that reads one expert into memory of the caller's. It does
not know which experts are wanted. Invariants: the index appears only behind the last byte, and says of which files and
in which forms; a pack of other files or forms is never read; an expert whose bytes are not those that were written is
never handed out. Writing goes on where it stopped, at the first expert that the journal does not vouch for.

Bytes are checked with CRC-32 when an expert is first read: to read a large pack as a whole would cost a minute of
every start.
"""

import contextlib
import fcntl
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch

from plimsoll_runtime.models.experts.layout import ExpertLayout
from plimsoll_runtime.models.weights.checkpoint import Checkpoint

VERSION = 1
SHARD_BYTES = 8 << 30
INDEX, JOURNAL, LOCK = "index.json", "journal.txt", "lock"
SUSPECT = "index.suspect.json"
"""The index of a pack of which an expert was found damaged: what it says is looked at again."""

Progress = Callable[[int, int], None]
"""Called with (bytes packed, bytes in all) after every expert."""


class PackError(Exception):
    """The folder cannot be written, or an expert of it is damaged; the text is one sentence."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an expert lies: the shard, and the bytes `offset .. offset + num_bytes - 1` of it."""

    shard: int
    offset: int
    num_bytes: int


def place_experts(layout: ExpertLayout, shard_bytes: int = SHARD_BYTES) -> tuple[Place, ...]:
    """One behind the other in the order of their numbers; a shard ends before the expert that it has no room for."""
    places: list[Place] = []
    shard, at = 0, 0
    for number in range(layout.count):
        num_bytes = layout.form_of(number).num_bytes
        if at and at + num_bytes > shard_bytes:
            shard, at = shard + 1, 0
        places.append(Place(shard, at, num_bytes))
        at += num_bytes
    return tuple(places)


def identity_of(layout: ExpertLayout) -> dict[str, Any]:
    """What a pack must be of to be read: the version, the forms, and the very files."""
    stats = {path.name: path.stat() for path in layout.sources}
    return {
        "version": VERSION,
        "num_experts": layout.num_experts,
        "forms": [form.text for form in layout.forms],
        "sources": {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()},
    }


class ExpertPack:
    """A complete pack, open for reading by several threads. `read` gives the bytes of one expert."""

    def __init__(self, folder: Path, places: tuple[Place, ...], checksums: tuple[int, ...]) -> None:
        self._folder = folder
        self._places = places
        self._checksums = checksums
        self._files = [_open_shard(folder, shard) for shard in range(places[-1].shard + 1)]
        self._checked: set[int] = set()

    def close(self) -> None:
        for file in self._files:
            os.close(file)

    def read(self, number: int, to: memoryview) -> None:
        """Fills the first bytes of `to`, which begins at a page of memory. Raises PackError."""
        place = self._places[number]
        target = to[: place.num_bytes]
        try:
            num_read = _read_fully(self._files[place.shard], target, place.offset)
        except OSError as error:
            raise PackError(f"{self._path(place)} cannot be read: {error.strerror}") from error
        if num_read == place.num_bytes and number in self._checked:
            return
        if num_read < place.num_bytes or zlib.crc32(target) != self._checksums[number]:
            self._give_up(number, place)
        self._checked.add(number)

    def _give_up(self, number: int, place: Place) -> None:
        """Without its index the next start checks every expert, and writes again what is wrong."""
        with contextlib.suppress(OSError):
            (self._folder / INDEX).rename(self._folder / SUSPECT)
        raise PackError(
            f"{self._path(place)} is damaged at byte {place.offset:,} (expert {number}): the pack is repaired at the "
            "next start, or by plimsoll pack"
        )

    def _path(self, place: Place) -> Path:
        return _shard_path(self._folder, place.shard)


def open_pack(folder: Path, layout: ExpertLayout, places: tuple[Place, ...]) -> ExpertPack | None:
    """The pack in `folder`, or None where there is none, a part of one, or one of other files or forms."""
    try:
        index = json.loads((folder / INDEX).read_bytes())
        sizes = [_shard_path(folder, shard).stat().st_size for shard in range(places[-1].shard + 1)]
    except (OSError, ValueError):
        return None
    if not isinstance(index, dict) or index.get("identity") != identity_of(layout) or sizes != _shard_sizes(places):
        return None
    checksums = index.get("checksums")
    if not isinstance(checksums, list) or len(checksums) != layout.count:
        return None
    return ExpertPack(folder, places, tuple(checksums))


def ensure_pack(
    folder: Path,
    checkpoint: Checkpoint,
    layout: ExpertLayout,
    progress: Progress,
    *,
    checks_all: bool = False,
    shard_bytes: int = SHARD_BYTES,
) -> ExpertPack:
    """The complete pack in `folder`, written now as far as it is missing. `checks_all`: every byte of one that is there
    is compared with its checksum, and written again where it differs. Raises PackError."""
    places = place_experts(layout, shard_bytes)
    if not checks_all:
        found = open_pack(folder, layout, places)
        if found is not None:
            return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            found = None if checks_all else open_pack(folder, layout, places)  # another process may have written it
            if found is None:
                _Writer(folder, checkpoint, layout, places).run(progress)
    except OSError as error:
        raise PackError(
            f"experts cannot be packed into {folder}: {error.strerror or error}: they need {layout.num_bytes:,} bytes "
            "where this process may write, beside the model or in its cache folder"
        ) from error
    found = open_pack(folder, layout, places)
    if found is None:
        raise PackError(f"{folder}: what was packed is not what was expected: was the model replaced meanwhile?")
    return found


class _Writer:
    """Writes what the journal does not vouch for, then the index."""

    def __init__(self, folder: Path, checkpoint: Checkpoint, layout: ExpertLayout, places: tuple[Place, ...]) -> None:
        self._folder = folder
        self._checkpoint = checkpoint
        self._layout = layout
        self._places = places
        self._identity = identity_of(layout)
        self._buffer = torch.empty(layout.slot_bytes, dtype=torch.uint8)

    def run(self, progress: Progress) -> None:
        known = self._known_checksums()
        checksums: list[int] = []
        done_bytes = 0
        with self._begin_journal(known) as journal, self._open_shards() as files:
            for number, place in enumerate(self._places):
                file = files[place.shard]
                if number in known and self._holds(file, place, known[number]):
                    checksums.append(known[number])
                else:
                    checksums.append(self._write(file, number, place))
                    journal.write(f"{number} {checksums[-1]}\n")
                    journal.flush()
                done_bytes += place.num_bytes
                progress(done_bytes, self._layout.num_bytes)
            for file, size in zip(files, _shard_sizes(self._places), strict=True):
                os.ftruncate(file, size)
                os.fsync(file)
        self._write_index({"identity": self._identity, "checksums": checksums})

    def _known_checksums(self) -> dict[int, int]:
        """By number: those of a complete pack, or of the journal of one that was being written; none of another's."""
        for name in (INDEX, SUSPECT):
            with contextlib.suppress(OSError, ValueError):
                index = json.loads((self._folder / name).read_bytes())
                return dict(enumerate(index["checksums"])) if index.get("identity") == self._identity else {}
        with contextlib.suppress(OSError, ValueError):
            first, *lines = (self._folder / JOURNAL).read_text().split("\n")[:-1]  # the last one may be cut off
            if json.loads(first) == self._identity:
                return {int(number): int(checksum) for number, checksum in (line.split() for line in lines)}
        return {}

    @contextlib.contextmanager
    def _begin_journal(self, known: Mapping[int, int]) -> Iterator[TextIO]:
        """What is known stays known from here on, whenever this process ends; the index goes after that."""
        draft = self._folder / (JOURNAL + ".part")
        with draft.open("w") as journal:
            journal.write(json.dumps(self._identity) + "\n")
            journal.writelines(f"{number} {checksum}\n" for number, checksum in known.items())
            journal.flush()
            draft.rename(self._folder / JOURNAL)
            (self._folder / INDEX).unlink(missing_ok=True)
            yield journal

    def _holds(self, file: int, place: Place, checksum: int) -> bool:
        target = self._buffer.numpy().data[: place.num_bytes]
        return _read_fully(file, target, place.offset) == place.num_bytes and zlib.crc32(target) == checksum

    def _write(self, file: int, number: int, place: Place) -> int:
        data = self._buffer[: place.num_bytes]
        self._layout.form_of(number).write(self._checkpoint, self._layout.prefix_of(number), data)
        target = data.numpy().data
        at = 0
        while at < len(target):
            at += os.pwrite(file, target[at:], place.offset + at)
        return zlib.crc32(target)

    @contextlib.contextmanager
    def _open_shards(self) -> Iterator[list[int]]:
        """Shards that an older pack had besides are removed."""
        count = self._places[-1].shard + 1
        for path in self._folder.glob("experts-*.bin"):
            if path not in [_shard_path(self._folder, shard) for shard in range(count)]:
                path.unlink()
        files = [os.open(_shard_path(self._folder, shard), os.O_RDWR | os.O_CREAT, 0o644) for shard in range(count)]
        try:
            yield files
        finally:
            for file in files:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(file)

    def _write_index(self, index: Mapping[str, Any]) -> None:
        draft = self._folder / (INDEX + ".part")
        with draft.open("w") as file:
            json.dump(index, file)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self._folder / INDEX)
        (self._folder / JOURNAL).unlink()
        (self._folder / SUSPECT).unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One writer at a time; who comes second waits, and finds the pack written."""
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _shard_path(folder: Path, shard: int) -> Path:
    return folder / f"experts-{shard:05}.bin"


def _shard_sizes(places: tuple[Place, ...]) -> list[int]:
    sizes = [0] * (places[-1].shard + 1)
    for place in places:
        sizes[place.shard] = place.offset + place.num_bytes
    return sizes


def _open_shard(folder: Path, shard: int) -> int:
    """Past the page cache, which would only hold what the cache of experts holds, or gave up; where a file system has
    no such reads, plain ones."""
    path = _shard_path(folder, shard)
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return os.open(path, os.O_RDONLY)


def _read_fully(file: int, target: memoryview, offset: int) -> int:
    """How many bytes came; fewer than asked for only at the end of the file."""
    at = 0
    while at < len(target):
        num_read = os.preadv(file, [target[at:]], offset + at)
        if not num_read:
            break
        at += num_read
    return at
