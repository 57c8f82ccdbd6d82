"""No test asks the network for a model."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _offline() -> None:
    """Set before transformers is imported by a test module's first use of the hub."""
    patch = pytest.MonkeyPatch()
    patch.setenv("HF_HUB_OFFLINE", "1")
