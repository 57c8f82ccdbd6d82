"""What a reader of the source may rely on, checked on the source itself."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = sorted([*ROOT.glob("runtime/plimsoll_runtime/**/*.py"), *ROOT.glob("operator/plimsoll_operator/**/*.py")])
PYTHON = sorted([*SOURCE, *ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("docs/**/*.py")])
ONLY_ADMISSION_MAKES = {"Budget", "AdmittedRequest", "AdmittedPrompt"}
FORBIDDEN_MODULE_NAMES = {"utils", "helpers", "common", "manager", "base", "types"}
MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 60
REGISTRY_HOSTS = ("pypi" + ".org", "python" + "hosted.org", "download." + "pytorch.org", "registry." + "npmjs.org")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def calls(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """(last part of the called name, line) of every call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Name(id=called) | ast.Attribute(attr=called):
                    yield called, node.lineno


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", SOURCE, ids=name)
def test_only_admission_makes_budgets(path: Path) -> None:
    """Before, each route built its own limit, and three of four forgot the configured default."""
    if "plimsoll_runtime/admission/" in name(path):
        return
    made = [f"{called} in line {line}" for called, line in calls(parse(path)) if called in ONLY_ADMISSION_MAKES]
    assert made == []


@pytest.mark.parametrize("path", SOURCE, ids=name)
def test_sizes_stay_readable(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES_OF_A_FILE
    lengths = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions(parse(path))}
    assert {name: length for name, length in lengths.items() if length > MOST_LINES_OF_A_FUNCTION} == {}


@pytest.mark.parametrize("path", SOURCE, ids=name)
def test_modules_say_what_they_own(path: Path) -> None:
    assert ast.get_docstring(parse(path))
    assert path.stem not in FORBIDDEN_MODULE_NAMES


def test_tests_are_no_packages() -> None:
    assert sorted(map(name, ROOT.glob("tests/**/__init__.py"))) == []


def test_no_file_names_a_registry() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode != 0:  # not a checkout, for example a source archive
        files = PYTHON
    else:
        files = [ROOT / entry for entry in listed.stdout.decode().split("\0") if entry and (ROOT / entry).is_file()]
    named = [name(path) for path in files if any(host.encode() in path.read_bytes() for host in REGISTRY_HOSTS)]
    assert named == []
