"""Says which tests were skipped, by kind, and fails where this machine should have run them.

In: the JUnit report of a run of all tests. A skip's reason begins with its kind and a colon: `gpu: ...`,
`cluster: ...`, or `cpu_feature: FLAG`, FLAG being a word of /proc/cpuinfo. Invariants: with a device no gpu test is
skipped, without one all of them are, and so for cluster; any other reason is a failure.
"""

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e" / "cluster"))
from plimsoll_cluster.binaries import find_binaries


def main(report: str) -> int:
    """Print the numbers and return 1 where they are wrong."""
    reasons = skip_reasons(Path(report))
    kinds = Counter(kind for kind, _ in reasons)
    expected = {"gpu": expected_skips("gpu", has_gpu()), "cluster": expected_skips("cluster", has_cluster())}
    faults = [f"skipped without a known kind: {kind}: {text}" for kind, text in reasons if not is_known(kind)]
    faults += [
        f"{kind}: {kinds[kind]} tests skipped, expected {number}"
        for kind, number in expected.items()
        if kinds[kind] != number
    ]
    flags = processor_flags()
    faults += [
        f"cpu_feature: this processor has {text}" for kind, text in reasons if kind == "cpu_feature" and text in flags
    ]
    for kind in ("gpu", "cluster", "cpu_feature"):
        print(f"skipped {kind}: {kinds[kind]}")
    for fault in faults:
        print(fault)
    return 1 if faults else 0


def skip_reasons(report: Path) -> list[tuple[str, str]]:
    """(kind, rest of the reason) of every skipped test."""
    found = []
    for skipped in ElementTree.parse(report).getroot().iter("skipped"):
        if skipped.get("type") != "pytest.xfail":
            kind, _, text = str(skipped.get("message")).removeprefix("Skipped: ").partition(":")
            found.append((kind.strip().replace("-", "_"), text.strip()))
    return found


def is_known(kind: str) -> bool:
    return kind in ("gpu", "cluster", "cpu_feature")


def expected_skips(marker: str, machine_has_it: bool) -> int:
    """None may be skipped where the machine has it; elsewhere as many as carry the marker."""
    if machine_has_it:
        return 0
    listing = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0", "-m", marker],
        capture_output=True,
        text=True,
        check=False,
    )
    return sum("::" in line for line in listing.stdout.splitlines())


def has_gpu() -> bool:
    program = shutil.which("nvidia-smi")
    return program is not None and subprocess.run([program, "-L"], capture_output=True, check=False).returncode == 0


def has_cluster() -> bool:
    return find_binaries() is not None


def processor_flags() -> set[str]:
    information = Path("/proc/cpuinfo")
    return set(information.read_text(encoding="utf-8").split()) if information.exists() else set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
