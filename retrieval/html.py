"""Building blocks of self-contained HTML pages: document, tables, embedded images and plots."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from .errors import MissingDependency

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def document(title: str, *, style: str, body: str, script: str = "") -> str:
    """Return an HTML page without external resources. Only the title is escaped."""
    ending = f"<script>{script}</script>" if script else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{style}</style></head>'
        f"<body>{body}{ending}</body></html>"
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "", marks: Sequence[str] = ()) -> str:
    """Return a table of cells that are HTML. The first cell of a row is its heading.

    Parameters
    ----------
    columns:
        Titles of the columns, or nothing for a table without them.
    kind, marks:
        CSS class of the table, and one of each row.
    """
    titles = "".join(f"<th scope='col'>{title}</th>" if title else "<td></td>" for title in columns)
    head = f"<thead><tr>{titles}</tr></thead>" if columns else ""
    lines = [f"<th scope='row'>{first}</th>" + "".join(f"<td>{cell}</td>" for cell in rest) for first, *rest in rows]
    body = "".join(
        f"<tr{_class(mark)}>{line}</tr>" for mark, line in zip(marks or [""] * len(lines), lines, strict=True)
    )
    return f"<table{_class(kind)}>{head}<tbody>{body}</tbody></table>"


def _class(name: str) -> str:
    return f" class='{name}'" if name else ""


def figure_grid(figures: Iterable[tuple[str, str, str]]) -> str:
    """Return figures side by side, each a heading, a picture and a caption. All three are HTML."""
    return "".join(
        f"<figure><h2>{heading}</h2>{picture}<figcaption>{caption}</figcaption></figure>"
        for heading, picture, caption in figures
    ).join(('<div class="pair">', "</div>"))


def data_uri(jpeg: bytes) -> str:
    """Return a JPEG as a data URI."""
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"


def picture(jpeg: bytes, *, alt: str = "") -> str:
    """Return a JPEG as an `img` element. `alt` is escaped; leave it empty if the adjacent text says the same."""
    return f'<img alt="{html.escape(alt)}" src="{data_uri(jpeg)}">'


def drawn(draw: Callable[[Axes], None]) -> str:
    """Draw a matplotlib figure and return it as SVG; raise MissingDependency if matplotlib is not installed."""
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
    """Add a legend above the axes. Matplotlib's automatic placement is slow with many points."""
    axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
