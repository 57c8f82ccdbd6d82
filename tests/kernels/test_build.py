"""The library is compiled file by file with the flags of its instruction set, or not at all, for a reason in words."""

import shutil
from pathlib import Path

import pytest

from plimsoll_runtime.kernels.native import build
from plimsoll_runtime.kernels.native.build import BuildError, build_library, find_compiler, flags_of, source_hash


def test_no_compiler_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BuildError, match=r"no C\+\+ compiler: none of c\+\+, g\+\+, clang\+\+ is on the PATH"):
        find_compiler()


def test_a_compiler_that_fails_leaves_what_was_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = tmp_path / "library.so"
    target.write_bytes(b"the last one")
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(BuildError, match="failed"):
        build_library(target)
    assert target.read_bytes() == b"the last one"
    assert [path.name for path in tmp_path.iterdir()] == ["library.so"]


@pytest.mark.parametrize("name", ["pool.cpp", "decoder.h", "build.py"])
def test_every_source_and_the_flags_are_in_the_hash(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    copy = tmp_path / "native"
    shutil.copytree(build.SOURCES, copy, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    before = source_hash()
    monkeypatch.setattr(build, "SOURCES", copy)
    assert source_hash() == before
    with (copy / name).open("a") as file:
        file.write("\n")
    assert source_hash() != before


@pytest.mark.parametrize(
    ("name", "machine", "flags"),
    [
        ("matrix_product_avx2.cpp", "x86_64", {"-mavx2", "-ffp-contract=off"}),
        ("matrix_product_avx512.cpp", "AMD64", {"-mavx512vnni", "-ffp-contract=off"}),
        ("pool.cpp", "x86_64", set()),
        ("matrix_product_avx2.cpp", "aarch64", {"-ffp-contract=off"}),
    ],
)
def test_only_files_named_for_an_instruction_set_may_use_it(
    name: str, machine: str, flags: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instruction outside of them would end the process on a processor that has it not."""
    monkeypatch.setattr("platform.machine", lambda: machine)
    found = set(flags_of(Path(name)))
    assert flags <= found
    assert {flag for flag in found - set(build.FLAGS) if flag not in flags} <= set(
        build.INSTRUCTION_FLAGS.get(name.removesuffix(".cpp").rpartition("_")[2], ()) if machine != "aarch64" else ()
    )
