"""Drawings of matched places: each place is where it belongs, and the outline surrounds all of them."""

from __future__ import annotations

import re

import pytest

from retrieval.places_svg import hull, places_svg

CORNERS = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)]


def test_no_places_draw_nothing() -> None:
    assert places_svg([]) == ""


def test_every_place_is_a_dot_and_the_outline_surrounds_them() -> None:
    drawn = places_svg([*CORNERS, (0.25, 0.5)])
    dots = re.findall(r"M([\d.]+) ([\d.]+)h0", drawn)
    assert [(float(x), float(y)) for x, y in dots] == [(0, 0), (100, 0), (100, 100), (0, 100), (25, 50)]
    outlines = re.findall(r'points="([^"]*)"', drawn)
    assert outlines == ["0.0,0.0 100.0,0.0 100.0,100.0 0.0,100.0"] * 2
    assert 'aria-hidden="true"' in drawn


@pytest.mark.parametrize(
    ("points", "outline"),
    [
        ([], []),
        ([(0.0, 0.0), (0.0, 0.0)], [(0.0, 0.0)]),
        ([(2.0, 2.0), (0.0, 0.0), (1.0, 1.0)], [(0.0, 0.0), (2.0, 2.0)]),
        ([(0.5, 0.1), *CORNERS, (0.5, 0.0)], CORNERS),
    ],
)
def test_a_hull_has_the_outermost_points(points: list[tuple[float, float]], outline: list[tuple[float, float]]) -> None:
    assert hull(points) == outline
