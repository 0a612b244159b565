"""Charts: their numbers are where they belong, their texts are escaped."""

from __future__ import annotations

import re

import numpy as np
import pytest

from retrieval.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Line, chart, histogram, percent, ticks


def drawn(line: Line, **others: object) -> list[tuple[float, float]]:
    page = chart([line], title="t", x_label="x", y_label="y", x_range=(0, 2), y_range=(0, 1), **others)  # type: ignore[arg-type]
    (path,) = re.findall(r' d="([^"]*)"', page)
    return [(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", path)]


def test_the_corners_of_the_ranges_are_the_corners_of_the_frame() -> None:
    points = drawn(Line("l", np.array([0.0, 2.0, 1.0, 9.0]), np.array([0.0, 1.0, 0.5, -3.0]), "a"))
    left, right, top, bottom = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
    assert points == [(left, bottom), (right, top), ((left + right) / 2, (top + bottom) / 2), (right, bottom)]


def test_an_area_ends_on_the_axis() -> None:
    points = drawn(Line("l", np.array([0.0, 2.0]), np.array([1.0, 1.0]), "a", filled=True))
    assert points[-2:] == [(WIDTH - RIGHT, HEIGHT - BOTTOM), (LEFT, HEIGHT - BOTTOM)]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 1.3, [0, 0.5, 1]),
        (0.1, 0.24, [0.1, 0.15, 0.2]),
        (0, 7e-4, [0, 2e-4, 4e-4, 6e-4]),
    ],
)
def test_ticks_are_round_numbers_in_the_range(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_a_histogram_sums_to_one_with_weights() -> None:
    edges = np.linspace(0, 1, 5)
    line = histogram("h", np.array([0.1, 0.1, 0.6, 5.0]), np.array([1.0, 1.0, 1.0, 1.0]), edges, "a")
    assert line.y[::2].tolist() == [0.5, 0, 0.25, 0.25]
    assert line.x.tolist() == [0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75, 1]


def test_texts_are_escaped() -> None:
    page = chart(
        [Line("<i>", np.zeros(2), np.zeros(2), "a")], title='"<b>', x_label="<u>", y_label="<s>",
        x_range=(0, 1), y_range=(0, 1), y_text=percent,
    )  # fmt: skip
    assert not re.search(r"<[ibus]>(?!</i>)", page.replace("<i></i>", ""))
    assert "100%" in page
