"""What the documents and the CI script say exists, exists."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "operator/DESIGN.md",
    "runtime/DESIGN.md",
    "charts/plimsoll/README.md",
    "e2e/cluster/README.md",
    "docs/benchmarks/cpu.md",
    "docs/benchmarks/operator.md",
]
MAKEFILES = ("Makefile", "e2e/cluster.mk")
TARGETS = re.findall(
    r"^([a-z0-9-]+):.*## ", "\n".join((ROOT / name).read_text(encoding="utf-8") for name in MAKEFILES), re.MULTILINE
)
GPU_MISSING = 'message="gpu: needs a CUDA device"'


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert [link for link in links if not ((ROOT / name).parent / link).exists()] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_named_targets_are_in_the_makefile(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    named = {word for line in re.findall(r"\bmake((?: [a-z0-9-]+)+)", text) for word in line.split()[:1]}
    assert named <= set(TARGETS)


def test_ci_calls_the_test_command_of_the_readme() -> None:
    command = "make test"
    assert re.search(rf"^{command} ", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert re.search(rf"{command}$", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize(
    ("has_gpu", "skipped", "code"),
    [
        pytest.param(False, [GPU_MISSING] * 2, 0, id="all-that-need-it"),
        pytest.param(False, [GPU_MISSING], 1, id="one-was-run-nowhere"),
        pytest.param(True, [], 0, id="none-with-a-device"),
        pytest.param(True, [GPU_MISSING], 1, id="skipped-with-a-device"),
        pytest.param(True, ['message="no time today"'], 1, id="no-kind"),
        pytest.param(True, ['message="cpu-feature: no_such_flag"'], 0, id="absent-feature"),
        pytest.param(True, ['type="pytest.xfail" message=""'], 0, id="expected-failure"),
    ],
)
def test_skips_are_counted_against_what_the_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_gpu: bool, skipped: list[str], code: int
) -> None:
    spec = importlib.util.spec_from_file_location("check_skips", ROOT / ".ci" / "check_skips.py")
    assert spec is not None
    assert spec.loader is not None
    check_skips = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check_skips)
    monkeypatch.setattr(check_skips, "expected_skips", lambda marker, has: 2 if marker == "gpu" and not has else 0)
    monkeypatch.setattr(check_skips, "has_gpu", lambda: has_gpu)
    report = tmp_path / "tests.xml"
    report.write_text(f"<suite>{''.join(f'<skipped {attributes}/>' for attributes in skipped)}</suite>")
    assert check_skips.main(str(report)) == code
