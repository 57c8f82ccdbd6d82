"""Malformed GGUF headers are refused with the file and the field named; good ones read as the `gguf` library does.

B92: such files aborted the process, allocated absurd sizes, or crashed at the first long prompt.
"""

import contextlib
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest

from models.gguf_bytes import ARRAY, BOOL, STRING, UINT8, UINT32, Header, pair, tensor, text, u32, u64
from models.tiny_models import build, gguf_settings, save_gguf, write_gguf
from plimsoll_runtime.models.weights.checkpoint import CheckpointError, open_checkpoint
from plimsoll_runtime.models.weights.entries import read_bytes
from plimsoll_runtime.models.weights.gguf import read_gguf

ALIGNMENT = "general.alignment"
HUGE = 2**63 - 1

BROKEN: dict[str, tuple[bytes, str]] = {
    "B92-huge-key-length": (Header(pairs=[u64(HUGE) + b"key"]).to_bytes(), "key 0 has 9,223,372,036,854,775,807 bytes"),
    "B92-key-length-over-the-rest": (Header(pairs=[u64(60_000) + b"k"]).to_bytes(), "key 0 needs 60,000 bytes"),
    "B92-empty-key": (Header(pairs=[pair("", UINT8, b"\1")]).to_bytes(), "key 0 has 0 bytes"),
    "B92-duplicate-key": (Header(pairs=[pair("a", UINT8, b"\1")] * 2).to_bytes(), "key a stands twice"),
    "B92-offset-past-the-end": (Header(tensors=[tensor("t", [4, 2], offset=4096)]).to_bytes(), "tensor t ends at byte"),
    "B92-dimensions-overflow": (
        Header(tensors=[tensor("t", [2**32, 2**32, 2**32])]).to_bytes(),
        "dimensions .* of tensor t are impossible",
    ),
    "B92-dimensions-wrap-to-zero": (
        Header(tensors=[tensor("t", [2**32, 2**31, 2, 1])]).to_bytes(),
        "dimensions .* of tensor t are impossible",
    ),
    "B92-unknown-array-type": (
        Header(pairs=[pair("a", ARRAY, u32(77) + u64(1) + b"\1")]).to_bytes(),
        "a has the unknown value type 77",
    ),
    "B92-nested-array": (
        Header(pairs=[pair("a", ARRAY, u32(ARRAY) + u64(1) + u32(UINT8) + u64(1) + b"\1")]).to_bytes(),
        "a has the unknown value type 9",
    ),
    "B92-version-1": (Header(version=1).to_bytes(), "version is 1; supported are 2, 3"),
    "B92-big-endian": (Header(version=3 << 24).to_bytes(), "big-endian"),
    "B92-html-page": (
        b"<!DOCTYPE html><html><body>404 Not Found</body></html>",
        "not a GGUF file: it begins with",
    ),
    "B92-empty-file": (b"", "the file is empty"),
    "B92-huge-tensor-count": (Header(num_tensors=HUGE).to_bytes(), "tensor_count is 9,223"),
    "B92-huge-pair-count": (Header(num_pairs=HUGE).to_bytes(), "metadata_kv_count is 9,223"),
    "B92-huge-array": (
        Header(pairs=[pair("a", ARRAY, u32(UINT32) + u64(2**62))]).to_bytes(),
        "the length of a is 4,611",
    ),
    "B92-huge-string-array": (
        Header(pairs=[pair("tokens", ARRAY, u32(STRING) + u64(2**61))]).to_bytes(),
        "the length of tokens is 2,305",
    ),
    "B92-string-in-array-over-the-rest": (
        Header(pairs=[pair("tokens", ARRAY, u32(STRING) + u64(2) + text("a") + u64(HUGE))]).to_bytes(),
        r"tokens\[1\] reaches beyond the end",
    ),
    "B92-huge-string": (Header(pairs=[pair("a", STRING, u64(HUGE) + b"x")]).to_bytes(), "a needs 9,223"),
    "B92-bool-of-2": (Header(pairs=[pair("a", BOOL, b"\2")]).to_bytes(), "a is a bool that is neither 0 nor 1"),
    "B92-key-not-utf8": (Header(pairs=[text(b"\xff\xfe") + u32(UINT8) + b"\1"]).to_bytes(), "key 0 at offset .* UTF-8"),
    "B92-alignment-zero": (Header(pairs=[pair(ALIGNMENT, UINT32, u32(0))]).to_bytes(), "general.alignment is 0"),
    "B92-alignment-not-a-power": (
        Header(pairs=[pair(ALIGNMENT, UINT32, u32(24))]).to_bytes(),
        "alignment is 24",
    ),
    "B92-alignment-a-string": (
        Header(pairs=[pair(ALIGNMENT, STRING, text("32"))]).to_bytes(),
        "alignment is '32'",
    ),
    "B92-alignment-true": (Header(pairs=[pair(ALIGNMENT, BOOL, b"\1")]).to_bytes(), "general.alignment is True"),
    "B92-offset-not-aligned": (Header(tensors=[tensor("t", [4, 2], offset=3)]).to_bytes(), "offset 3 of tensor t"),
    "B92-no-dimensions": (Header(tensors=[tensor("t", [])]).to_bytes(), "tensor t has 0 dimensions"),
    "B92-many-dimensions": (Header(tensors=[tensor("t", [1] * 5)]).to_bytes(), "tensor t has 5 dimensions"),
    "B92-dimension-of-zero": (
        Header(tensors=[tensor("t", [0, 2])]).to_bytes(),
        "dimensions .* of tensor t are impossible",
    ),
    "B92-rows-not-whole-groups": (Header(tensors=[tensor("t", [4, 2], kind=2)]).to_bytes(), "tensor t has rows of 4"),
    "B92-duplicate-tensor": (Header(tensors=[tensor("t", [4, 2])] * 2).to_bytes(), "tensor t stands twice"),
    "B92-overlapping-tensors": (
        Header(tensors=[tensor("t", [4, 2]), tensor("u", [4, 2])]).to_bytes(),
        "tensors t and u overlap",
    ),
    "unsupported-type": (
        Header(tensors=[tensor("t", [256, 2], kind=16)]).to_bytes(),
        r"has type 16 \(IQ2_XXS\)",
    ),
    "unknown-type": (
        Header(tensors=[tensor("t", [256, 2], kind=999)]).to_bytes(),
        r"has type 999 \(unknown\)",
    ),
    "truncated-tensor": (Header(data=bytes(31)).to_bytes(), "tensor token_embd.weight ends at byte"),
    "no-architecture": (Header(pairs=[]).to_bytes(), "general.architecture is missing"),
    "unknown-architecture": (
        Header(pairs=[pair("general.architecture", STRING, text("mamba"))]).to_bytes(),
        r"general.architecture mamba is not supported; supported: llama, qwen2, qwen3, gemma3 \(text\)",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_malformed_file_is_refused_naming_file_and_field(name: str, tmp_path: Path) -> None:
    data, message = BROKEN[name]
    path = tmp_path / "broken.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=message) as refusal:
            open_checkpoint(path)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert peak_bytes < 2_000_000


def test_a_file_cut_at_any_byte_is_refused(tmp_path: Path) -> None:  # B92: cut at 50 %
    pairs = [
        pair("general.architecture", STRING, text("llama")),
        pair("tokens", ARRAY, u32(STRING) + u64(3) + text("a") + text("") + text(b"\xff")),
        pair("numbers", ARRAY, u32(UINT32) + u64(2) + u32(1) + u32(2)),
        pair("flag", BOOL, b"\1"),
    ]
    whole = Header(pairs=pairs).to_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole)
    assert read_gguf(path).metadata["tokens"] == ["a", "", b"\xff"]
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"cut\.gguf: "):
            read_gguf(path)


def test_a_changed_byte_never_does_worse_than_a_refusal(tmp_path: Path) -> None:  # B92
    whole = Header(pairs=[pair("tokens", ARRAY, u32(STRING) + u64(2) + text("ab") + text("c"))]).to_bytes()
    path = tmp_path / "changed.gguf"
    for position in range(len(whole) - 32):
        for value in (0, 1, 0x7F, 0xFF):
            path.write_bytes(whole[:position] + bytes([value]) + whole[position + 1 :])
            with contextlib.suppress(CheckpointError):
                read_gguf(path)


def test_a_good_file_reads_as_the_library_reads_it(tmp_path: Path) -> None:
    path = save_gguf(
        build("qwen2"),
        tmp_path / "good.gguf",
        "Q8_0",
        **{"general.sampling.temp": 0.5, "words": ["ä", "b"], "numbers": [1, 2], "flag": True, "name": "tiny"},
    )
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    expected = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == expected
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for found in theirs.tensors:
        entry = ours.tensors[found.name]
        assert (entry.storage.name, list(entry.shape)) == (found.tensor_type.name, [int(n) for n in found.shape[::-1]])
        np.testing.assert_array_equal(read_bytes(entry).data_RB.numpy().ravel(), found.data.view(np.uint8).ravel())


def test_a_file_that_shrinks_after_opening_names_the_tensor(tmp_path: Path) -> None:
    path = save_gguf(build("llama"), tmp_path / "model.gguf")
    checkpoint = open_checkpoint(path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match=r"tensor token_embd\.weight is cut off"):
        checkpoint.read("embedding")


def write_parts(folder: Path) -> list[Path]:
    """A model in two parts, the second with the output matrix."""
    whole = gguf.GGUFReader(save_gguf(build("llama"), folder / "whole.gguf"))
    paths = [folder / f"model-{part:05}-of-00002.gguf" for part in (1, 2)]
    for index, path in enumerate(paths):
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_uint16("split.no", index)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", len(whole.tensors))
        for key, field in whole.fields.items():
            if index == 0 and not key.startswith("GGUF.") and key != "general.architecture":
                writer.add_key_value(key, field.contents(), field.types[0])
        for found in whole.tensors:
            if (found.name == "output.weight") == (index == 1):
                writer.add_tensor(found.name, found.data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


def test_parts_of_a_split_file_make_the_whole(tmp_path: Path) -> None:
    parts = write_parts(tmp_path)
    whole = open_checkpoint(tmp_path / "whole.gguf")
    for part in parts:
        split = open_checkpoint(part)
        assert split.architecture == whole.architecture
        assert split.read("output").data_RB.equal(whole.read("output").data_RB)


# B94: a missing part was noticed by garbage in the answers.
def test_a_missing_part_is_named(tmp_path: Path) -> None:
    first, second = write_parts(tmp_path)
    second.rename(second.with_suffix(".gguf.incomplete"))
    with pytest.raises(CheckpointError, match=r"these are missing: model-00002-of-00002\.gguf"):
        open_checkpoint(first)


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    first, second = write_parts(tmp_path)
    second.write_bytes(first.read_bytes())
    with pytest.raises(CheckpointError, match=r"tensor .* is also in"):
        open_checkpoint(first)
    first.rename(tmp_path / "renamed.gguf")
    with pytest.raises(CheckpointError, match=r"split\.count is 2, but the file is not named"):
        open_checkpoint(tmp_path / "renamed.gguf")


def test_blocks_that_draft_are_left_out(tmp_path: Path) -> None:
    """A file with blocks behind its last layer, which predict tokens ahead, is that model without them."""
    plain = save_gguf(build("qwen3_5"), tmp_path / "plain.gguf")
    settings = gguf_settings(build("qwen3_5")) | {"block_count": 5, "nextn_predict_layers": 1}
    tensors = {tensor.name: ("F32", tensor.data) for tensor in gguf.GGUFReader(plain).tensors}
    tensors["blk.4.nextn.eh_proj.weight"] = ("F32", np.ones((4, 4), dtype=np.float32))
    checkpoint = open_checkpoint(write_gguf(tmp_path / "drafts.gguf", "qwen35", settings, tensors))
    assert checkpoint.architecture == open_checkpoint(plain).architecture
    assert checkpoint.weight_bytes == open_checkpoint(plain).weight_bytes


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("ssm.time_step_rank", 3, "ssm.time_step_rank is 3, not a multiple of ssm.group_count = 2"),
        ("attention.recurrent_layers", True, "attention.recurrent_layers is True, which is not supported"),
        ("ssm.conv_kernel", 65, "ssm.conv_kernel is 65, not a whole number from 1 to 64"),
        ("full_attention_interval", 5, "full_attention_interval is 5, not a whole number from 1 to 4"),
        ("rope.dimension_count", 33, "rope.dimension_count is 33, not a whole number from 1 to 32"),
        ("rope.dimension_count", 7, "rope.dimension_count is 7; so many elements turn in pairs"),
    ],
)
def test_a_delta_net_that_cannot_be_is_refused_by_key(key: str, value: int, words: str, tmp_path: Path) -> None:
    settings = gguf_settings(build("qwen3_5")) | {key: value}
    embedding = {"token_embd.weight": ("F32", np.ones((128, 64), dtype=np.float32))}
    with pytest.raises(CheckpointError, match=rf"qwen35\.{words}"):
        open_checkpoint(write_gguf(tmp_path / "model.gguf", "qwen35", settings, embedding))
