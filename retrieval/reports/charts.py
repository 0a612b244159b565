"""Line charts: their ticks and paths in pixels, which the macro `chart` of `templates/macros.html` draws as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WIDTH, HEIGHT = 560, 320
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 44  # margins
TICKS = 5  # about so many on each axis


@dataclass(frozen=True)
class Line:
    """A line of a chart: n points, with a colour of `templates/base.html` (a, b, c or d)."""

    name: str  # in the legend, which leaves out lines without a name
    x: Floats  # (n,)
    y: Floats  # (n,)
    kind: str  # colour and any of the words dashed, faint and area

    @classmethod
    def at(cls, name: str, x: float, top: float, kind: str) -> Line:
        """Return a vertical line."""
        return cls(name, np.array([x, x]), np.array([0, top]), kind)


@dataclass(frozen=True)
class Chart:
    """Lines with axes. Points beyond the ranges are cut off at the edges."""

    title: str
    lines: Sequence[Line]
    x_label: str
    y_label: str
    x_range: tuple[float, float]
    y_range: tuple[float, float] = 0.0, 1.0
    in_percent: bool = True  # the ticks of the y axis

    def x(self, value: float) -> float:
        """Return the pixel of a value on the x axis."""
        return LEFT + _share(value, self.x_range) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Return the pixel of a value on the y axis."""
        return HEIGHT - BOTTOM - _share(value, self.y_range) * (HEIGHT - TOP - BOTTOM)

    def path(self, line: Line) -> str:
        """Return the path of a line; that of an area goes down to the axis."""
        points = [f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True)]
        if "area" in line.kind and points:
            ground = self.y(self.y_range[0])
            points += [f"{self.x(line.x[-1]):.1f} {ground:.1f}", f"{self.x(line.x[0]):.1f} {ground:.1f}Z"]
        return f"M{'L'.join(points)}" if points else ""

    @property
    def x_ticks(self) -> list[tuple[float, str]]:
        """Pixel and text of the ticks of the x axis."""
        return [(self.x(value), f"{value:g}") for value in ticks(*self.x_range)]

    @property
    def y_ticks(self) -> list[tuple[float, str]]:
        """Pixel and text of the ticks of the y axis."""
        return [(self.y(v), f"{100 * v:.3g}%" if self.in_percent else f"{v:g}") for v in ticks(*self.y_range)]


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
    """Return the weighted shares of values (n,) between edges (m,) as an area of steps."""
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), bins=edges, weights=weights)
    shares = counts / max(float(weights.sum()), 1e-12)
    return Line(name, np.repeat(edges, 2)[1:-1], np.repeat(shares, 2), f"area {colour}")
