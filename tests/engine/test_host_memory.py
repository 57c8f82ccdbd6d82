"""Available bytes: the machine's, or the container's where that is less."""

from pathlib import Path

import pytest
import torch

from plimsoll_runtime.engine.host_memory import available_bytes

MEMINFO = "MemTotal:       4000 kB\nMemFree:         100 kB\nMemAvailable:   2000 kB\n"
VERSION_2 = {"memory.max": "1000000", "memory.current": "700000", "memory.stat": "anon 5\ninactive_file 50000\n"}
VERSION_1 = {
    "memory/memory.limit_in_bytes": "1000000",
    "memory/memory.usage_in_bytes": "700000",
    "memory/memory.stat": "total_inactive_file 50000\n",
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 2_048_000 * 9 // 10),
        (VERSION_2, 350_000 * 9 // 10),
        (VERSION_1, 350_000 * 9 // 10),
        ({**VERSION_2, "memory.max": "max"}, 2_048_000 * 9 // 10),
        ({**VERSION_2, "memory.max": "9000000000"}, 2_048_000 * 9 // 10),
    ],
    ids=["no group", "version 2", "version 1", "no limit", "limit above the machine"],
)
def test_available_bytes(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    for name, text in {"meminfo": MEMINFO, **files}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_bytes(torch.device("cpu"), proc=tmp_path, groups=tmp_path) == expected


def test_a_machine_that_does_not_tell_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 1 kB\n")
    with pytest.raises(RuntimeError, match="MemAvailable"):
        available_bytes(torch.device("cpu"), proc=tmp_path, groups=tmp_path)


def test_this_machine_tells() -> None:
    assert available_bytes(torch.device("cpu")) > 0
