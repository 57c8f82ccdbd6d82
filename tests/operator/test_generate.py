"""Reference pages follow from the contract, and a stale one is noticed."""

from pathlib import Path

import pytest

from plimsoll_operator.generate import main, reference_pages

ROOT = Path(__file__).parents[2]


def test_the_pages_in_the_repository_are_what_the_contract_says() -> None:
    assert main(["--check", "--root", str(ROOT)]) == 0


def test_check_finds_a_stale_page_and_generate_mends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pyproject.toml").touch()
    arguments = ["--root", str(tmp_path)]
    assert main([*arguments, "--check"]) == 1
    assert main(arguments) == 0
    assert main([*arguments, "--check"]) == 0
    page = tmp_path / next(iter(reference_pages()))
    page.write_text(page.read_text(encoding="utf-8") + "by hand\n", encoding="utf-8")
    assert main([*arguments, "--check"]) == 1
    assert page.name in capsys.readouterr().err


def test_another_folder_is_left_alone(tmp_path: Path) -> None:
    assert main(["--root", str(tmp_path)]) == 1
    assert list(tmp_path.iterdir()) == []
