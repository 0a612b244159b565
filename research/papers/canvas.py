"""Figures without a window, saved as PNG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from retrieval.files import naming

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(panels: int, *, width: float = 5.0, height: float = 4.0) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels side by side, without display or global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * panels, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [figure.add_subplot(1, panels, place + 1) for place in range(panels)]


def save(figure: Figure, kind: str, folder: Path) -> str:
    """Save a figure as PNG under the name of its kind; return the file name."""
    name = "".join(c if c.isalnum() else "-" for c in kind.lower()).strip("-") + ".png"
    with naming(folder / name):
        figure.savefig(folder / name, dpi=110)
    return name
