"""The native library, where a compiler could make it: fixtures for tests of kernels and of models."""

import pytest

from plimsoll_runtime.kernels.native import LIBRARY_PATH
from plimsoll_runtime.kernels.native.build import BuildError, find_compiler
from plimsoll_runtime.kernels.native_library import NativeError, usable_instructions

INSTRUCTIONS = ("generic", "avx2", "avx_vnni", "avx512_vnni")
"""Named as in /proc/cpuinfo, except the first."""


@pytest.fixture(params=INSTRUCTIONS)
def instructions(request: pytest.FixtureRequest, native_library: tuple[str, ...]) -> str:
    """Each instruction set of the library, forced."""
    name: str = request.param
    if name not in native_library:
        pytest.skip(f"cpu_feature: {name}")
    return name


@pytest.fixture(scope="session")
def native_library() -> tuple[str, ...]:
    """The instruction sets that this processor has."""
    if not LIBRARY_PATH.exists():
        try:
            find_compiler()
        except BuildError as error:
            pytest.skip(f"cpu_feature: a compiler: {error}")
        pytest.fail("the native library is not built: make native")
    try:
        return usable_instructions()
    except NativeError as error:
        pytest.fail(str(error))
