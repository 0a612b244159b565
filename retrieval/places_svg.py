"""Matched places of two photos, drawn over a picture as inline SVG. The page around it holds both in one box."""

from __future__ import annotations

from collections.abc import Sequence

Place = Sequence[float]  # x and y, as shares of the width and height of the photo

STYLE = """
.places { position: relative; display: inline-block; line-height: 0; }
.places img { display: block; max-width: 100%; height: auto; }
.places svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; pointer-events: none; }
.places polygon { fill: #14b8a6; fill-opacity: .18; stroke: #fff; stroke-width: 3; vector-effect: non-scaling-stroke; }
.places polygon + polygon { fill: none; stroke: #0f766e; stroke-width: 1.5; }
.places path { fill: none; stroke: #f59e0b; stroke-width: 6; stroke-linecap: round; vector-effect: non-scaling-stroke; }
"""


def places_svg(places: Sequence[Place]) -> str:
    """Return the outline of the places and a dot at each; "" without places.

    The drawing is hidden from screen readers, so the caller states the number of places as text.
    """
    if not places:
        return ""
    percent = [(100 * x, 100 * y) for x, y in places]
    outline = " ".join(f"{x:.1f},{y:.1f}" for x, y in hull(percent))
    dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in percent)
    area = f'<polygon points="{outline}"/>' * 2
    return f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">{area}<path d="{dots}"/></svg>'


def hull(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the convex hull of points, in order around it (Andrew's monotone chain)."""
    ordered = sorted(set(points))
    if len(ordered) < 3:
        return ordered
    halves: list[list[tuple[float, float]]] = []
    for direction in (ordered, ordered[::-1]):
        half: list[tuple[float, float]] = []
        for point in direction:
            while len(half) > 1 and _turn(half[-2], half[-1], point) <= 0:
                half.pop()
            half.append(point)
        halves.append(half[:-1])
    return halves[0] + halves[1]


def _turn(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
