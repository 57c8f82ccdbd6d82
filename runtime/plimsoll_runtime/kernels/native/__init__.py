"""C++ sources of the native kernels, how they are compiled, and what must be known of them before torch is imported."""

from pathlib import Path

from plimsoll_runtime.kernels.native.build import LIBRARY_NAME

LIBRARY_PATH = Path(__file__).parent / LIBRARY_NAME


def thread_environment() -> dict[str, str]:
    """Where there is a library, torch's threads sleep between operations: spinning, they hold the cores of its threads.

    Torch alone is faster when they spin: its products of a few rows take 1.5 to 2 times as long with sleeping threads.
    """
    return {"OMP_WAIT_POLICY": "passive"} if LIBRARY_PATH.exists() else {}
