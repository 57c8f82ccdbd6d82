"""The packed file of experts: written once, continued where it stopped, and never read when it is not what it says.

What happened elsewhere: a server that was killed while it converted weights started on half of them.
"""

import json
import mmap
import os
from pathlib import Path

import pytest
import torch

from doubles.offloaded import no_progress, opened
from models.tiny_models import build, save_folder, save_gguf
from plimsoll_runtime.models.experts.layout import BLOCK_BYTES, ExpertForm, ExpertLayout
from plimsoll_runtime.models.experts.pack import ExpertPack, PackError, ensure_pack, open_pack, place_experts
from plimsoll_runtime.models.weights.checkpoint import Checkpoint

SHARD_BYTES = 5 * 4 * BLOCK_BYTES
"""A few experts of the tiny model each."""


class KilledError(Exception):
    """The process ends here."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_gguf(build("qwen3_moe"), tmp_path / "model.gguf", "Q8_0")


@pytest.fixture
def made(model: Path) -> tuple[Checkpoint, ExpertLayout]:
    return opened(model)


def pack(folder: Path, made: tuple[Checkpoint, ExpertLayout], checks_all: bool = False) -> ExpertPack:
    return ensure_pack(folder, *made, no_progress, checks_all=checks_all, shard_bytes=SHARD_BYTES)


def is_complete(folder: Path, made: tuple[Checkpoint, ExpertLayout]) -> bool:
    found = open_pack(folder, made[1], place_experts(made[1], SHARD_BYTES))
    return found is not None


def read(found: ExpertPack, layout: ExpertLayout, number: int) -> torch.Tensor:
    data = torch.frombuffer(mmap.mmap(-1, layout.slot_bytes), dtype=torch.uint8)
    found.read(number, data.numpy().data)
    return data[: layout.form_of(number).num_bytes]


def check(found: ExpertPack, made: tuple[Checkpoint, ExpertLayout]) -> None:
    """Every expert is there, bit for bit as the checkpoint gives it."""
    checkpoint, layout = made
    for number in range(layout.count):
        expected = torch.empty(layout.form_of(number).num_bytes, dtype=torch.uint8)
        layout.form_of(number).write(checkpoint, layout.prefix_of(number), expected)
        assert torch.equal(read(found, layout, number), expected)


def writes_of(monkeypatch: pytest.MonkeyPatch, stop_after: int = 10**9) -> list[str]:
    """The experts that are written from now on; the process ends after so many."""
    written: list[str] = []
    write = ExpertForm.write

    def watched(form: ExpertForm, checkpoint: Checkpoint, prefix: str, to: torch.Tensor) -> None:
        if len(written) == stop_after:
            raise KilledError
        write(form, checkpoint, prefix, to)
        written.append(prefix)

    monkeypatch.setattr(ExpertForm, "write", watched)
    return written


def test_every_expert_is_there_aligned_and_in_shards(tmp_path: Path, made: tuple[Checkpoint, ExpertLayout]) -> None:
    told: list[tuple[int, int]] = []
    folder = tmp_path / "pack"
    found = ensure_pack(folder, *made, lambda done, total: told.append((done, total)), shard_bytes=SHARD_BYTES)
    check(found, made)
    assert told[-1] == (made[1].num_bytes, made[1].num_bytes)
    assert len(told) == made[1].count == 3 * 8
    shards = sorted(folder.glob("experts-*.bin"))
    assert len(shards) > 2
    assert all(0 < shard.stat().st_size <= SHARD_BYTES for shard in shards)
    assert all(place.offset % BLOCK_BYTES == 0 for place in place_experts(made[1], SHARD_BYTES))
    assert not (folder / "journal.txt").exists()


def test_floats_of_a_folder_are_packed_too(tmp_path: Path) -> None:
    made = opened(save_folder(build("qwen3_5_moe"), tmp_path / "model"))
    check(pack(tmp_path / "pack", made), made)


def test_a_complete_pack_is_not_written_again(
    tmp_path: Path, made: tuple[Checkpoint, ExpertLayout], monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(tmp_path / "pack", made)
    written = writes_of(monkeypatch)
    for checks_all in (False, True):
        pack(tmp_path / "pack", made, checks_all)
    assert not written


def test_what_was_cut_off_goes_on_where_it_stopped(
    tmp_path: Path, made: tuple[Checkpoint, ExpertLayout], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pack"
    with monkeypatch.context() as patch:
        writes_of(patch, stop_after=10)
        with pytest.raises(KilledError):
            pack(folder, made)
    assert not is_complete(folder, made)
    with (folder / "journal.txt").open("a") as journal:
        journal.write("10 123")  # a line that the disk lost half of
    with monkeypatch.context() as patch:
        written = writes_of(patch)
        found = pack(folder, made)
        assert len(written) == made[1].count - 10
    check(found, made)


def test_an_expert_that_the_journal_vouches_for_and_the_disk_lost_is_written_again(
    tmp_path: Path, made: tuple[Checkpoint, ExpertLayout], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pack"
    with monkeypatch.context() as patch:
        writes_of(patch, stop_after=10)
        with pytest.raises(KilledError):
            pack(folder, made)
    damage(folder, 3, made)
    with monkeypatch.context() as patch:
        written = writes_of(patch)
        found = pack(folder, made)
        assert len(written) == made[1].count - 10 + 1
        assert "layers.0.experts.3" in written
    check(found, made)


def damage(folder: Path, number: int, made: tuple[Checkpoint, ExpertLayout]) -> None:
    place = place_experts(made[1], SHARD_BYTES)[number]
    with (folder / f"experts-{place.shard:05}.bin").open("r+b") as file:
        file.seek(place.offset + 100)
        byte = file.read(1)
        file.seek(place.offset + 100)
        file.write(bytes([byte[0] ^ 1]))


def test_a_damaged_expert_is_never_handed_out_and_the_next_start_repairs_it_alone(
    tmp_path: Path, made: tuple[Checkpoint, ExpertLayout], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pack"
    pack(folder, made).close()
    damage(folder, 7, made)
    written = writes_of(monkeypatch)
    found = pack(folder, made)
    read(found, made[1], 6)
    with pytest.raises(PackError, match=r"damaged at byte .*expert 7"):
        read(found, made[1], 7)
    assert not is_complete(folder, made)
    found.close()
    repaired = pack(folder, made)
    assert written == ["layers.0.experts.7"]
    check(repaired, made)


def test_plimsoll_pack_repairs_the_damaged_one_alone(
    tmp_path: Path, made: tuple[Checkpoint, ExpertLayout], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pack"
    pack(folder, made).close()
    damage(folder, 7, made)
    written = writes_of(monkeypatch)
    found = pack(folder, made, checks_all=True)
    assert written == ["layers.0.experts.7"]
    monkeypatch.undo()
    check(found, made)


def test_a_shard_that_is_cut_off_is_written_again(tmp_path: Path, made: tuple[Checkpoint, ExpertLayout]) -> None:
    folder = tmp_path / "pack"
    pack(folder, made).close()
    os.truncate(folder / "experts-00001.bin", BLOCK_BYTES)
    assert not is_complete(folder, made)
    check(pack(folder, made), made)


@pytest.mark.parametrize("how", ["touched", "replaced", "other-forms", "old-version", "no-json"])
def test_a_stale_pack_is_written_again(tmp_path: Path, model: Path, how: str) -> None:
    folder = tmp_path / "pack"
    made = opened(model)
    pack(folder, made).close()
    index = folder / "index.json"
    match how:
        case "touched":
            os.utime(model, ns=(1, 1))
        case "replaced":
            model.unlink()
            save_gguf(build("qwen3_moe", num_experts=7), model, "Q8_0")
        case "other-forms":
            made = opened(model, dtype=torch.bfloat16)
            model.unlink()
            save_gguf(build("qwen3_moe"), model, "Q5_0")
        case "old-version":
            text = json.loads(index.read_text())
            text["identity"]["version"] = 0
            index.write_text(json.dumps(text))
        case "no-json":
            index.write_text("{")
    made = opened(model)
    assert not is_complete(folder, made)
    check(pack(folder, made), made)
    assert is_complete(folder, made)


def test_a_folder_that_cannot_be_written_says_what_is_needed(
    tmp_path: Path, made: tuple[Checkpoint, ExpertLayout]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PackError, match=r"experts cannot be packed into .*: they need [0-9,]+ bytes"):
        pack(tmp_path / "file" / "pack", made)
