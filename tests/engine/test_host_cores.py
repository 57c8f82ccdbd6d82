"""Compute threads follow the container's quota, not the node: 64 threads on 2 cores are throttled to a crawl."""

import os
from pathlib import Path

import pytest

from plimsoll_runtime.engine.host_cores import usable_cores

CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, CORES),
        ({"cpu.max": "max 100000\n"}, CORES),
        ({"cpu.max": "100000 100000\n"}, 1),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "150000 100000\n"}, min(2, CORES)),
        ({"cpu.max": "6400000 100000\n"}, CORES),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, CORES),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
    ],
    ids=["no group", "no limit", "one", "half", "one and a half", "more than there are", "v1 no limit", "v1 one"],
)
def test_cores(tmp_path: Path, files: dict[str, str], cores: int) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_cores(tmp_path) == cores
