"""How many bytes this process may still take: what the memory plan starts from.

In: a device, and the folders that the kernel reports through. Out: bytes. It knows no model. Sources: proc(5) for
/proc/meminfo, and the kernel's documentation of control groups, versions 2 and 1.
"""

from pathlib import Path

import torch

CLAIMED_TENTHS = 9
"""Of ten: the rest is for what else runs here, and for what a plan in integers does not see."""

_GROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)


def available_bytes(device: torch.device, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Nine tenths of the device's free memory; on a CPU of the smaller of the machine's and the container's."""
    if device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(device)
        return int(free_bytes) * CLAIMED_TENTHS // 10
    machine_bytes = _machine_bytes(proc / "meminfo")
    group_bytes = [_group_bytes(groups, *names) for names in _GROUP_FILES]
    smallest = min([machine_bytes, *(number for number in group_bytes if number is not None)])
    return smallest * CLAIMED_TENTHS // 10


def _machine_bytes(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{meminfo} has no line MemAvailable, so the memory plan has nothing to start from")


def _group_bytes(groups: Path, limit_name: str, usage_name: str, reclaimable_name: str) -> int | None:
    """The group's limit less its usage, or None where no limit is set. Clean file pages are given up on demand."""
    limit_file = groups / limit_name
    if not limit_file.exists() or not limit_file.read_text().strip().isdigit():
        return None
    usage = int((groups / usage_name).read_text())
    statistics = dict(line.split() for line in (limit_file.parent / "memory.stat").read_text().splitlines())
    return int(limit_file.read_text()) - usage + int(statistics.get(reclaimable_name, 0))
