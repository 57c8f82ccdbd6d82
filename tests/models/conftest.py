"""No test asks the network for a model; the native library is where it could be made."""

import pytest

from kernels.native_fixtures import instructions, native_library

__all__ = ["instructions", "native_library"]


@pytest.fixture(autouse=True, scope="session")
def _offline() -> None:
    """Set before transformers is imported by a test module's first use of the hub."""
    patch = pytest.MonkeyPatch()
    patch.setenv("HF_HUB_OFFLINE", "1")
