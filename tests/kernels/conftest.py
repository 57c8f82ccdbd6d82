"""The native library for these tests."""

from kernels.native_fixtures import instructions, native_library

__all__ = ["instructions", "native_library"]
