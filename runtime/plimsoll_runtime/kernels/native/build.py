"""Compiles the native library beside its sources: `python build.py`, and what setup.py does for a wheel.

Owns the compiler's flags, one set per file: a file whose name ends in an instruction set may use it, and runs only
where `processor.cpp` says that the processor has it. In: the sources of this folder and a C++17 compiler (CXX, or the
first of c++, g++ and clang++). Out: LIBRARY_NAME, which tells the hash of what it was made of, since nothing makes it
again when sources change. It imports nothing of the package, since it runs before there is one.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LIBRARY_NAME = "libplimsoll.so"
SOURCES = Path(__file__).parent
COMPILERS = ("c++", "g++", "clang++")
# One warning is left out: GCC finds uninitialized registers in its own header of AVX-512.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=default",
    "-pthread",
    "-Wall",
    "-Wextra",
    "-Wno-maybe-uninitialized",
)

AVX2_FLAGS = ("-mavx2", "-mfma", "-mf16c")
INSTRUCTION_FLAGS = {
    "avx2": AVX2_FLAGS,
    "avxvnni": (*AVX2_FLAGS, "-mavxvnni"),
    "avx512": (*AVX2_FLAGS, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"),
}
"""By the last part of a file's name."""

EXACT_PREFIX = "matrix"
EXACT_FLAGS = ("-ffp-contract=off",)
"""Files of matrices say themselves where a product and a sum are rounded once: all instruction sets must agree."""


HASHED_STEM = "interface"
"""The file that is compiled with the hash of all."""


class BuildError(Exception):
    """One sentence: why there is no library."""


def build_library(target: Path) -> None:
    """Writes the library to `target`, replacing it whole. Raises BuildError."""
    compiler = find_compiler()
    with tempfile.TemporaryDirectory(prefix="plimsoll-native-") as folder:
        sources, made_of = sorted(SOURCES.glob("*.cpp")), source_hash()
        objects = [Path(folder) / f"{source.stem}.o" for source in sources]
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(lambda pair: _compile(compiler, made_of, *pair), zip(sources, objects, strict=True)))
        made = Path(folder) / LIBRARY_NAME
        _run([compiler, "-shared", "-pthread", "-o", str(made), *map(str, objects)])
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copyfile(made, beside)
        beside.replace(target)


def source_hash() -> str:
    """Of every source, and of the flags in this file: a library that tells another one was made of others."""
    digest = hashlib.sha256()
    for path in sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h"), SOURCES / "build.py"]):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def find_compiler() -> str:
    """The compiler's path. Raises BuildError."""
    if platform.system() == "Windows":
        raise BuildError("the native kernels are not built on Windows")
    names = (os.environ["CXX"],) if os.environ.get("CXX") else COMPILERS
    found = [path for path in map(shutil.which, names) if path is not None]
    if not found:
        raise BuildError(f"there is no C++ compiler: none of {', '.join(names)} is on the PATH (CXX names another)")
    return found[0]


def flags_of(source: Path) -> tuple[str, ...]:
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    instructions = INSTRUCTION_FLAGS.get(source.stem.rpartition("_")[2], ()) if is_x86 else ()
    return FLAGS + instructions + (EXACT_FLAGS if source.stem.startswith(EXACT_PREFIX) else ())


def _compile(compiler: str, made_of: str, source: Path, target: Path) -> None:
    told = (f'-DPLIMSOLL_SOURCE_HASH="{made_of}"',) if source.stem == HASHED_STEM else ()
    _run([compiler, *flags_of(source), *told, "-c", str(source), "-o", str(target)])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)} failed:\n{done.stderr.strip()[-2000:]}")


if __name__ == "__main__":
    try:
        build_library(SOURCES / LIBRARY_NAME)
    except BuildError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    print(f"made {SOURCES / LIBRARY_NAME}")
