"""Pictures for the documentation, drawn from the records as SVG that is readable on light and dark pages."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .record import Table, read_record

INK, BLUE, ORANGE = "#808080", "#3f88e0", "#e07b39"  # each has contrast to white and to black
SHOWN = {"nearest photo": ORANGE, "item distance": BLUE}
TRAININGS = {"base": ORANGE, "with TCM": BLUE, "EL-nivMF": INK}
PROMISED = 0.05


def found(axes: Sequence[Axes], table: Table, served: Table) -> None:
    """Draw TPIR against FPIR on each set, with the points of the galleries' own thresholds."""
    for one, data in zip(axes, dict.fromkeys(row[0] for row in table.rows), strict=True):
        for name, colour in SHOWN.items():
            (row,) = (each for each in table.rows if each[:2] == (data, name))
            one.plot(_shares(table.columns[2:]), [float(each) for each in row[2:]], color=colour, label=name)
            by = " by nearest photo" if name == "nearest photo" else ""
            point = (served.cell(data, f"FPIR realised{by}"), served.cell(data, f"TPIR served{by}"))
            one.plot(*(float(value.split()[0]) for value in point), "o", color=colour)
        one.axvline(PROMISED, color=INK, linewidth=0.8, linestyle=":")
        one.set(title=data, xlabel="FPIR", ylabel="TPIR", ylim=(0, None), xlim=(0, 0.3))
    axes[0].legend(frameon=False, labelcolor=INK)


def trainings(axes: Sequence[Axes], table: Table, means: Table) -> None:
    """Draw TPIR of the demo's trainings at the promised FPIR by seed, and their mean OPIS beside chance."""
    parts = ("fitted", "others")
    for number, (name, colour) in enumerate(TRAININGS.items()):
        beside, rows = 0.2 * (number - 1), [row[0] for row in table.rows if row[0].endswith(f", {name}, all")]
        tpir = np.array([float(table.cell(row, "TPIR")) for row in rows])
        low, high = np.array([[float(end) for end in table.cell(row, "TPIR, 95 %").split(" to ")] for row in rows]).T
        errors = np.maximum(0, [tpir - low, high - tpir])
        axes[0].errorbar(np.arange(len(rows)) + beside, tpir, errors, fmt="o", color=colour, capsize=3, label=name)
        opis = [float(means.cell(f"{name}, {part}", "OPIS")) for part in parts]
        axes[1].bar(np.arange(len(parts)) + beside, opis, 0.18, color=colour)
    axes[0].set(xlabel="seed", title="TPIR at the promised FPIR", ylim=(0, None))
    axes[0].set_xticks(range(len(rows)), [row.partition(",")[0] for row in rows])
    axes[0].legend(frameon=False, labelcolor=INK, loc="lower right")
    for place, part in enumerate(parts):
        chance = float(means.cell(f"base, {part}", "by chance"))
        axes[1].hlines(chance, place - 0.35, place + 0.35, color=INK, linestyle=":")
    axes[1].set(xlabel="items", title="OPIS; dotted: by chance")
    axes[1].set_xticks(range(len(parts)), parts)


def promise(axes: Sequence[Axes], table: Table) -> None:
    """Draw the FPIR that galleries of several sizes realise, with its standard deviation over divisions."""
    rows: dict[str, list[tuple[float, ...]]] = {}
    for row in table.rows:
        name, size = row[0].rsplit(", ", 1)
        rows.setdefault(name, []).append((float(size), *map(float, row[1].split(" ± "))))
    for number, (name, points) in enumerate(rows.items()):
        sizes, means, spread = np.array(points).T
        beside = 1.04 ** (number - (len(rows) - 1) / 2)  # bars of one size do not cover each other
        axes[0].errorbar(sizes * beside, means, yerr=spread, fmt="o-", capsize=3, label=name)
    axes[0].axhline(PROMISED, color=INK, linewidth=0.8, linestyle=":")
    axes[0].set(xscale="log", xlabel="items in the gallery", ylabel="FPIR realised", ylim=(0, None))
    axes[0].set_xticks([50, 100, 200, 400], ["50", "100", "200", "400"])
    axes[0].minorticks_off()
    axes[0].legend(frameon=False, labelcolor=INK)


def parts(axes: Sequence[Axes], table: Table) -> None:
    """Draw the time of each part of a search over HTTP."""
    times = {name: max(0.0, float(value)) for name, value in table.rows}
    bars = axes[0].barh(list(times), list(times.values()), color=BLUE)
    axes[0].bar_label(bars, [f"{time:.1f}" for time in times.values()], color=INK, padding=3)
    axes[0].invert_yaxis()
    axes[0].set(xlabel="ms of one core")


PICTURES: Mapping[str, tuple[Callable[..., None], tuple[str, ...], tuple[int, int]]] = {
    "found": (found, ("item_distance / curves", "item_distance / found"), (2, 3)),
    "trainings": (trainings, ("demo / trainings", "demo / means"), (1, 2)),
    "promise": (promise, ("promise / sizes",), (1, 1)),
    "parts": (parts, ("endpoint / parts",), (1, 1)),
}  # name: what draws it, the tables that it shows, rows and columns of axes


def draw(name: str) -> str:
    """Return a picture as SVG; it begins with `mark`."""
    make, addresses, (rows, columns) = PICTURES[name]
    figure = Figure(figsize=(max(6.0, 3.0 * columns), 3.0 * rows + 0.3), layout="constrained", facecolor="none")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    make(axes, *tables(addresses))
    for one in axes:
        one.set_facecolor("none")
        one.title.set_color(INK)
        one.tick_params(colors=INK)
        for label in (one.xaxis.label, one.yaxis.label):
            label.set_color(INK)
        for spine in one.spines.values():
            spine.set_color(INK)
        one.spines[["top", "right"]].set_visible(False)
    file = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return f"{mark(name)}\n{file.getvalue().partition('?>')[2].lstrip()}"


def mark(name: str) -> str:
    """Return a comment that names the figures of a picture, by which a test knows whether it is of today's records."""
    shown = [[table.columns, *table.rows] for table in tables(PICTURES[name][1])]
    return f"<!-- figures {hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:12]} -->"


def tables(addresses: Sequence[str]) -> list[Table]:
    """Return tables of records."""
    return [read_record(record).table(table) for record, table in (each.split(" / ") for each in addresses)]


def write_pictures(folder: Path) -> list[Path]:
    """Draw the pictures whose figures have changed; return their paths."""
    written = []
    for name in PICTURES:
        path = folder / f"{name}.svg"
        if not path.exists() or not path.read_text(encoding="utf-8").startswith(mark(name)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(draw(name), encoding="utf-8")
            written.append(path)
    return written


def _shares(columns: Sequence[str]) -> list[float]:
    return [float(column.removeprefix("FPIR ")) for column in columns]
