"""What our pages of one file share: the frame, and pictures and drawings that travel inside it."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable
from typing import TYPE_CHECKING

from .errors import MissingDependency

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def document(title: str, *, style: str, body: str, script: str = "") -> str:
    """Return a whole HTML page that loads nothing; the title is escaped, the rest is HTML, CSS and JavaScript."""
    ending = f"<script>{script}</script>" if script else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{style}</style></head>'
        f"<body>{body}{ending}</body></html>"
    )


def data_uri(jpeg: bytes) -> str:
    """Return a JPEG as an address that holds it."""
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"


def picture(jpeg: bytes, *, alt: str = "") -> str:
    """Return a JPEG as an image element; `alt` is escaped, and is empty where the text beside it says the same."""
    return f'<img alt="{html.escape(alt)}" src="{data_uri(jpeg)}">'


def drawn(draw: Callable[[Axes], None]) -> str:
    """Return a figure as SVG text."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependency.of_extra("matplotlib", "train") from error
    figure = Figure(figsize=(5.6, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    draw(axes)
    file = io.StringIO()
    figure.savefig(file, format="svg", dpi=150, metadata={"Date": None, "Creator": None})
    return file.getvalue()[file.getvalue().index("<svg") :]


def legend_above(axes: Axes) -> None:
    """Add a legend above the axes: matplotlib's search for a free corner takes long where there are many points."""
    axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
