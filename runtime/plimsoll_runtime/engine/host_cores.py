"""How many cores this process may use: what the number of compute threads is set to.

In: the scheduler's affinity, and the folders of control groups. Out: a whole number, at least 1. A container with a
limit of 2 cores on a node of 64 must not run 64 threads: they would be throttled most of the time. Sources: the
kernel's documentation of control groups, versions 2 (`cpu.max`) and 1 (`cpu.cfs_quota_us`).
"""

import os
from pathlib import Path


def usable_cores(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores by affinity, or by the container's quota where that is less; a part of a core counts as a whole one."""
    quotas = (_quota_version_2(groups), _quota_version_1(groups / "cpu"))
    limits = [-(-used // period) for used, period in (quota for quota in quotas if quota is not None)]
    return max(1, min([len(os.sched_getaffinity(0)), *limits]))


def _quota_version_2(group: Path) -> tuple[int, int] | None:
    """(microseconds, per microseconds) or None where nothing is set."""
    file = group / "cpu.max"
    if not file.exists():
        return None
    used, period = file.read_text().split()
    return None if used == "max" else (int(used), int(period))


def _quota_version_1(group: Path) -> tuple[int, int] | None:
    used_file, period_file = group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us"
    if not used_file.exists() or not period_file.exists():
        return None
    used = int(used_file.read_text())
    return None if used <= 0 else (used, int(period_file.read_text()))
