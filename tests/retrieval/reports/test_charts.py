"""Charts: ticks, paths within the frame, and areas that are closed."""

from __future__ import annotations

import numpy as np
import pytest

from retrieval.reports.charts import Chart, Line, histogram, ticks


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (0, 0.07, [0, 0.02, 0.04, 0.06]), (0, 1234, [0, 500, 1000])],
)
def test_ticks_are_round_values_within_the_limits(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == expected


def test_points_beyond_the_ranges_are_cut_off_at_the_edges() -> None:
    chart = Chart("", [], "x", "y", (0.0, 2.0))
    assert (chart.x(0), chart.x(2), chart.x(9)) == (52, 548, 548)
    assert (chart.y(0), chart.y(1), chart.y(-3)) == (276, 12, 276)
    assert chart.path(Line.at("", 1.0, 1.0, "c")) == "M300.0 276.0L300.0 12.0"
    assert chart.path(Line("", np.zeros(0), np.zeros(0), "a")) == ""
    area = chart.path(Line("", np.array([0, 2.0]), np.array([0.5, 0.5]), "area a"))
    assert area.endswith("L548.0 276.0L52.0 276.0Z")


def test_a_histogram_shows_weighted_shares() -> None:
    line = histogram("", np.array([0.1, 0.9, 5]), np.array([1.0, 1, 2]), np.array([0, 0.5, 1]), "a")
    assert line.y.tolist() == [0.25, 0.25, 0.75, 0.75]
    assert line.x.tolist() == [0, 0.5, 0.5, 1]
