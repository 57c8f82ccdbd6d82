"""The figures of `make bench-cpu` as a picture: how far each is from its floor and its goal.

In: figures with floors. Out: a PNG, where matplotlib is installed, and a sentence about it.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from table import Figure


def draw(figures: Sequence[Figure], path: Path) -> str:
    """One bar per figure, in units of its floor: above 1 it is met. Returns what to say about it."""
    if importlib.util.find_spec("matplotlib") is None:
        return f"no picture: the Python package matplotlib is not installed, {path} is not written"
    shown = [figure for figure in figures if figure.met is not None and figure.floor]
    if not shown:
        return "no picture: no figure with a floor was measured"
    _draw(shown, path)
    return f"the picture is {path}"


def _draw(figures: Sequence[Figure], path: Path) -> None:
    import matplotlib  # noqa: PLC0415 - an extra that most people do without

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    picture, axes = pyplot.subplots(figsize=(9, 0.45 * len(figures) + 1.2), layout="constrained")
    names = [f"{figure.name} ({figure.medians['value']:.3g})" for figure in figures]
    reached = [_times(figure, figure.medians["value"]) for figure in figures]
    goals = [_times(figure, figure.goal_value) for figure in figures]
    positions = range(len(figures))
    axes.barh(positions, reached, color=["tab:blue" if figure.met else "tab:red" for figure in figures])
    axes.scatter(goals, positions, marker="|", s=220, color="black", label="goal", zorder=3)
    axes.axvline(1, color="gray", linestyle="--", label="floor")
    axes.set_yticks(positions, names)
    axes.invert_yaxis()
    axes.set_xlabel("in units of the floor: right of the line is met")
    axes.legend(loc="lower right")
    picture.savefig(path, dpi=120)


def _times(figure: Figure, value: float) -> float:
    """`value` in units of the floor, so that more is better whatever the figure is."""
    return figure.floor / value if figure.less_is_better else value / figure.floor
