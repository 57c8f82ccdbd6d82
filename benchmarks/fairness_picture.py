"""The distribution of waiting as a picture: which part of the normal answers waited how long, one line for each arm.

In: answers by arm. Out: a PNG where matplotlib is installed, and a sentence about it. The axis of time is logarithmic,
since that is how far the arms are apart.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairness_answers import Answer

SHORTEST_SECONDS = 0.1
PANELS = ("until the first token", "until the end")


def draw_waits(path: Path, arms: Mapping[str, Sequence[Answer]], title: str) -> str:
    """Two panels: seconds to the first token, and seconds to the end. Returns what to say about it."""
    if importlib.util.find_spec("matplotlib") is None:
        return f"no picture: the Python package matplotlib is not installed, {path} is not written"
    _draw(path, arms, title)
    return f"the picture is {path}"


def _draw(path: Path, arms: Mapping[str, Sequence[Answer]], title: str) -> None:
    import matplotlib  # noqa: PLC0415 - an extra that most people do without

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    picture, panels = pyplot.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    for panel, until in zip(panels, PANELS, strict=True):
        for arm, answers in arms.items():
            seconds = sorted(_seconds(answer, until) for answer in answers if not answer.entry.is_runaway)
            parts = [100 * (number + 1) / len(seconds) for number in range(len(seconds))]
            panel.step(seconds, parts, where="post", label=arm, alpha=0.8, linestyle="--" if "," in arm else "-")
        panel.set_xscale("log")  # a dashed arm is a variant, and may lie on the line that it varies
        panel.set_xlabel(f"seconds {until}")
        panel.grid(visible=True, alpha=0.3)
    panels[0].set_ylabel("per cent of the normal answers")
    panels[1].legend(loc="upper left")
    picture.suptitle(title)
    picture.savefig(path, dpi=110)
    pyplot.close(picture)


def _seconds(answer: Answer, until: str) -> float:
    end = answer.first_token if until == PANELS[0] else answer.ended
    return max(SHORTEST_SECONDS, end - answer.sent)
