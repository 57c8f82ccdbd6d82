"""Adds the native kernels to a wheel or an editable install, where there is a C++ compiler.

Everything else about the project stands in pyproject.toml. Without a compiler, or when it fails, a note is printed and
the runtime computes with torch alone.
"""

import runpy
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

NATIVE = Path("runtime/plimsoll_runtime/kernels/native")
build = runpy.run_path(str(NATIVE / "build.py"))


def has_compiler() -> bool:
    try:
        build["find_compiler"]()
    except build["BuildError"]:
        return False
    return True


class BuildWithKernels(build_py):
    def run(self) -> None:
        super().run()
        folder = NATIVE if self.editable_mode else Path(self.build_lib, *NATIVE.parts[1:])
        try:
            build["build_library"](folder / build["LIBRARY_NAME"])
        except build["BuildError"] as error:
            print(f"note: no native kernels, the runtime will compute with torch alone: {error}", file=sys.stderr)


class PlatformDistribution(Distribution):
    """A wheel with the library in it is for one platform."""

    def has_ext_modules(self) -> bool:
        return has_compiler()


class AnyPythonWheel(bdist_wheel):
    """The library does not know Python: its wheel is for every version."""

    def get_tag(self) -> tuple[str, str, str]:
        _, _, platform = super().get_tag()
        return "py3", "none", platform


setup(
    distclass=PlatformDistribution,
    cmdclass={"build_py": BuildWithKernels, "bdist_wheel": AnyPythonWheel},
)
