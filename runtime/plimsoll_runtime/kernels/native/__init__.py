"""C++ sources of the native kernels, how they are compiled, and what must be known of them before torch is imported."""

from pathlib import Path

from plimsoll_runtime.kernels.native.build import LIBRARY_NAME

LIBRARY_PATH = Path(__file__).parent / LIBRARY_NAME


def thread_environment() -> dict[str, str]:
    """Where there is a library, torch's threads sleep between operations: spinning, they hold the cores of its threads.

    Torch alone is faster when they spin: its products of a few rows take 1.5 to 2 times as long with sleeping threads.
    That is what a model pays which the library does not compute (float weights, another --dtype than auto, a processor
    without AVX2): torch reads the variable when it is imported, long before the model is known. Whoever serves such a
    model sets OMP_WAIT_POLICY=active; what is set already is left alone.
    """
    return {"OMP_WAIT_POLICY": "passive"} if LIBRARY_PATH.exists() else {}
