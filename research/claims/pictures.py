"""Picture of the similarities after each loss, without and with TCM, and of the margins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from research.papers.canvas import new_figure

from .plan import tcm_pairs
from .store import Runs
from .training import Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"negative": "tab:blue", "positive": "tab:orange"}
ENDS, RANGE = (5, 50, 95), (90, 99)  # percents of the pairs; the calibration range of OPIS among negative pairs


def draw_similarities(sets: Mapping[str, Runs], path: Path) -> None:
    """Draw one panel for each set: the test pairs of seed 0."""
    figure, panels = new_figure(len(sets), width=5.5, height=3.6)
    for panel, (name, runs) in zip(panels, sets.items(), strict=True):
        panel.set_title(name)
        panel.set_xlabel("cosine of a pair of unseen classes")
        rows: list[tuple[str, Task, Task]] = []
        for base, both in tcm_pairs(runs):
            rows += [(base.loss, base, both), (f"{base.loss} + TCM", both, both)]
        for place, (_, task, regularized) in enumerate(rows):
            _draw(panel, -place, runs.test(task)["quantiles"], regularized.tcm)
        panel.set_yticks([-place for place in range(len(rows))], [title for title, *_ in rows])
    figure.savefig(path, metadata={"Date": None})


def _draw(panel: Axes, height: float, quantiles: Mapping[str, Sequence[float]], margins: Any) -> None:
    """Draw the middle 90 % of both kinds of pairs, their medians, the range of OPIS, and the margins."""
    for kind, shift in (("negative", -0.12), ("positive", 0.12)):
        low, middle, high = (quantiles[kind][share] for share in ENDS)
        panel.plot([low, high], [height + shift] * 2, color=COLOURS[kind], linewidth=2)
        panel.plot([middle], [height + shift], "o", color=COLOURS[kind], markersize=4)
    panel.plot([quantiles["negative"][share] for share in RANGE], [height - 0.12] * 2, color="black", linewidth=4)
    for margin, marker in zip(margins[:2], ("<", ">"), strict=True):
        panel.plot([margin], [height], marker, color="black", markersize=5, fillstyle="none")
