"""The table of bug cases names tests that exist, and forgets no case."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROWS = re.findall(r"^\| (B\d+) \| (\S+) \| (.*) \|$", (TESTS / "BUG_CASES.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize(("case", "group", "covered_by"), ROWS, ids=[row[0] for row in ROWS])
def test_a_row_names_a_test_or_says_not_yet(case: str, group: str, covered_by: str) -> None:
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", covered_by)
    assert named or covered_by.startswith(("NOT YET: ", "CANNOT HAPPEN: ")), f"{case} is covered by nothing"
    for path, function in named:
        text = ((TESTS.parent if path.startswith("e2e/") else TESTS) / path).read_text()
        assert re.search(rf"^\s*(async )?def {function}", text, re.MULTILINE), f"{path} has no test {function}..."


def test_no_case_is_forgotten() -> None:
    assert len({case for case, _, _ in ROWS}) == len(ROWS) == 118
