"""Figures as a table for people: one line per figure, ours beside the yardsticks, and the goal where there is one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One measured quantity: medians by the name of what was measured. `goal` is in words, `met` its outcome; where a
    floor and a goal are set as numbers, about the median named "value", `met` is the floor's and `goal_met` the
    goal's."""

    name: str
    unit: str
    medians: Mapping[str, float]
    goal: str = ""
    met: bool | None = None
    goal_met: bool = False
    floor: float = 0.0
    goal_value: float = 0.0
    less_is_better: bool = False


def render_table(figures: Sequence[Figure], columns: Sequence[str]) -> str:
    """The figures as aligned text; a column without a median stays empty."""
    lines = _cells(figures, columns)
    widths = [max(len(line[index]) for line in lines) for index in range(len(lines[0]))]
    numbers = range(2, 2 + len(columns))
    return "\n".join(
        "  ".join(
            cell.rjust(width) if index in numbers else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def render_markdown(figures: Sequence[Figure], columns: Sequence[str]) -> str:
    """The same table for a page."""
    head, *lines = _cells(figures, columns)
    ruler = ["---", "---", *["---:"] * len(columns), "---", "---"]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ruler, *lines))


def _cells(figures: Sequence[Figure], columns: Sequence[str]) -> list[list[str]]:
    lines = [["figure", "unit", *columns, "goal", ""]]
    for figure in figures:
        numbers = [_number(figure.medians[column]) if column in figure.medians else "" for column in columns]
        lines.append([figure.name, figure.unit, *numbers, figure.goal, _outcome(figure)])
    return lines


def _outcome(figure: Figure) -> str:
    if figure.met is None:
        return ""
    return "goal met" if figure.goal_met else "met" if figure.met else "MISSED"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
