"""Line charts as inline SVG, without a plotting library. Colours are CSS variables of the page around them."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WIDTH, HEIGHT = 560, 320
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 44  # margins
TICKS = 5  # about so many on each axis
STYLE = """
.chart { width: 100%; height: auto; display: block; } .chart text { font: 13px system-ui, sans-serif;
  fill: var(--soft); }
.chart .axis { stroke: var(--line); } .chart .line { fill: none; stroke-width: 2; stroke: var(--c); }
.chart .dashed { stroke-dasharray: 6 4; } .chart .area { fill: var(--c); fill-opacity: .3; stroke: var(--c); }
.a { --c: var(--a); } .b { --c: var(--b); } .c { --c: var(--c3); } .d { --c: var(--soft); }
@media (max-width: 40rem) { .chart text { font-size: 19px; } }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .9rem; margin: .3rem 0; padding: 0;
  list-style: none; }
.legend i { display: inline-block; width: 1.4rem; border-top: 3px solid var(--c); margin-right: .4rem;
  vertical-align: middle; }
.legend .dashed i { border-top-style: dashed; }
"""


@dataclass(frozen=True)
class Line:
    """A line of a chart: n points, with a colour of `STYLE` (a, b, c or d)."""

    name: str
    x: Floats  # (n,)
    y: Floats  # (n,)
    colour: str
    dashed: bool = False
    filled: bool = False  # down to the axis


def percent(value: float) -> str:
    """Return a tick label in percent."""
    return f"{100 * value:.3g}%"


def chart(
    lines: Sequence[Line],
    *,
    title: str,
    x_label: str,
    y_label: str,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    y_text: Callable[[float], str] = "{:g}".format,
) -> str:
    """Return a chart with its legend as HTML. Points beyond the ranges are cut off at the edges."""
    frame = _Frame(x_range, y_range)
    marks = "".join(
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{frame.y(v):.1f}" y2="{frame.y(v):.1f}"/>'
        f'<text x="{LEFT - 6}" y="{frame.y(v) + 4:.1f}" text-anchor="end">{html.escape(y_text(v))}</text>'
        for v in ticks(*y_range)
    )
    marks += "".join(
        f'<text x="{frame.x(v):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{v:g}</text>'
        for v in ticks(*x_range)
    )
    middle = (LEFT + WIDTH - RIGHT) / 2
    names = (
        f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{html.escape(x_label)}</text>'
        f'<text x="{LEFT + 6}" y="{TOP + 14}">{html.escape(y_label)}</text>'
    )
    drawn = "".join(frame.path(line) for line in lines)
    legend = "".join(
        f'<li class="{line.colour}{" dashed" if line.dashed else ""}"><i></i>{html.escape(line.name)}</li>'
        for line in lines
    )
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)}">'
        f'{marks}{drawn}{names}</svg><ul class="legend">{legend}</ul>'
    )


@dataclass(frozen=True)
class _Frame:
    """The mapping from values to pixels."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]

    def x(self, value: float) -> float:
        return LEFT + _share(value, self.x_range) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - _share(value, self.y_range) * (HEIGHT - TOP - BOTTOM)

    def path(self, line: Line) -> str:
        """Return a line as an SVG path."""
        points = [f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True)]
        if not points:
            return ""
        kind = f"{'area' if line.filled else 'line'}{' dashed' if line.dashed else ''} {line.colour}"
        ground = self.y(self.y_range[0])
        closed = f"L{self.x(line.x[-1]):.1f} {ground:.1f}L{self.x(line.x[0]):.1f} {ground:.1f}Z" if line.filled else ""
        return f'<path class="{kind}" d="M{"L".join(points)}{closed}"/>'


def _share(value: float, limits: tuple[float, float]) -> float:
    return float(np.clip((value - limits[0]) / (limits[1] - limits[0]), 0, 1))


def ticks(low: float, high: float) -> list[float]:
    """Return round values between two limits."""
    rough = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(n * step, 12) for n in range(first, last + 1)]


def histogram(name: str, values: Floats, weights: Floats, edges: Floats, colour: str) -> Line:
    """Return the weighted shares of values (n,) between edges (m,) as a filled line of steps."""
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), bins=edges, weights=weights)
    shares = counts / max(float(weights.sum()), 1e-12)
    return Line(name, np.repeat(edges, 2)[1:-1], np.repeat(shares, 2), colour, filled=True)
