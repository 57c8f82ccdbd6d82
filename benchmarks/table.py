"""Figures as a table for people: one line per figure, ours beside the yardsticks, and the goal where there is one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One measured quantity: medians by the name of what was measured. `goal` is in words, `met` its outcome."""

    name: str
    unit: str
    medians: Mapping[str, float]
    goal: str = ""
    met: bool | None = None


def render_table(figures: Sequence[Figure], columns: Sequence[str]) -> str:
    """The figures as aligned text; a column without a median stays empty."""
    lines = [["figure", "unit", *columns, "goal", ""]]
    for figure in figures:
        cells = [_number(figure.medians[column]) if column in figure.medians else "" for column in columns]
        outcome = "" if figure.met is None else "met" if figure.met else "MISSED"
        lines.append([figure.name, figure.unit, *cells, figure.goal, outcome])
    widths = [max(len(line[index]) for line in lines) for index in range(len(lines[0]))]
    numbers = range(2, 2 + len(columns))
    return "\n".join(
        "  ".join(
            cell.rjust(width) if index in numbers else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
