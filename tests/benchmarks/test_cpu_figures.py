"""The judgement of `make bench-cpu`: what a floor is said of, and what is said when a yardstick is missing."""

from pathlib import Path

import pytest

from cpu_figures import AIMS, AT_4000, LLAMA, OURS, row, values
from llama_programs import find_programs
from roofline import shares
from table import render_markdown

BY_KEY = {aim.key: aim for aim in AIMS}


@pytest.mark.parametrize(
    ("key", "ours", "llama", "value", "met", "goal_met"),
    [
        ("single", 90, 100, 0.9, True, False),
        ("single", 89, 100, 0.89, False, False),
        ("single", 130, 100, 1.3, True, True),
        ("shared-prefix", 10, 20, 2, True, False),  # seconds: theirs over ours
        ("shared-prefix", 11, 20, 20 / 11, False, False),
        ("memory", 480, 100, 1.2, True, False),  # at most, with 300 MB allowed
        ("memory", 400, 100, 1.0, True, True),
        ("memory", 484, 100, 1.21, False, False),
    ],
)
def test_floor_and_goal_are_bounds_of_the_value(
    key: str, ours: float, llama: float, value: float, met: bool, goal_met: bool
) -> None:
    figure = row(BY_KEY[key], {key: {OURS: [ours], LLAMA: [llama]}})
    assert figure.medians["value"] == pytest.approx(value)
    assert (figure.met, figure.goal_met) == (met, goal_met)


def test_a_ratio_is_taken_within_each_round() -> None:
    """In the second round the whole machine was ten times slower: that is no difference between the two."""
    samples = {"single": {OURS: [100.0, 10.0, 100.0], LLAMA: [50.0, 5.0, 50.0]}}
    assert values(BY_KEY["single"], samples) == [2, 2, 2]


def test_without_the_yardstick_there_is_no_verdict() -> None:
    figure = row(BY_KEY["single"], {"single": {OURS: [100.0]}})
    assert figure.met is None
    assert figure.medians == {OURS: 100}


def test_what_has_no_yardstick_is_judged_alone() -> None:
    figure = row(BY_KEY["start"], {"start": {OURS: [1.9, 9.0, 2.0]}})
    assert figure.medians["value"] == 2
    assert figure.goal_met
    assert render_markdown([figure], [OURS]).endswith("| s | 2 | at most 3, goal 2 | goal met |")


def test_missing_programs_are_named(tmp_path: Path) -> None:
    assert "LLAMA_CPP_BIN is not set" in str(find_programs({}))
    present = tmp_path / "llama-bench"
    present.touch(mode=0o755)
    found = find_programs({"LLAMA_CPP_BIN": str(tmp_path)})
    assert isinstance(found, str)
    assert "llama-server" in found
    assert "llama-bench" not in found
    for name in ("llama-batched-bench", "llama-server"):
        (tmp_path / name).touch(mode=0o755)
    assert find_programs({"LLAMA_CPP_BIN": str(tmp_path)}) == tmp_path


def test_a_share_is_a_rate_times_its_cost_against_the_machine() -> None:
    roofline = {
        "weight_megabytes": 100.0,
        "kv_kilobytes_per_token": 20.0,
        "weights_gigabytes_per_second": 40.0,
        "memory_gigabytes_per_second": 20.0,
        "prefill_megaflops_per_token": 200.0,
        "float32_gigaflops": 400.0,
    }
    reached = shares(roofline, {"single": 100.0, "prefill": 1000.0, AT_4000: 50.0})
    assert list(reached.values()) == pytest.approx([25, 50, 45, 50])
