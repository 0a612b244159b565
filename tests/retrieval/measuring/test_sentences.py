"""Sentences on points and on promises."""

from __future__ import annotations

from types import SimpleNamespace

from retrieval.measuring.draws import NAMES
from retrieval.measuring.point import Point, Rates
from retrieval.measuring.sentences import caveats, describe_briefly, describe_names

from .test_rule import calibrate, searches


def test_a_point_is_described_in_one_line() -> None:
    point = calibrate(searches(25))
    assert describe_briefly(point) == (
        f"a match is a distance of at most {point.threshold:.4f}; FPIR 0.05 is estimated for 25 items, at most "
        f"{point.rates.fpir_upper:.2g} with 95 % confidence."
    )
    assert describe_briefly(Point(0.5, "certified", 0.1)) == (
        "a match is a distance of at most 0.5000; FPIR 0.1 is certified."
    )


def test_words_that_no_threshold_decides_are_not_told_to_lack_names() -> None:
    without, undecided = (SimpleNamespace(kinds=kinds) for kinds in ({}, {NAMES: (None, Point.uncalibrated(0.05))}))
    assert "too few have a name of their own" in describe_names(without)  # type: ignore[arg-type]
    assert "do not belong together" in describe_names(undecided)  # type: ignore[arg-type]


def test_half_of_the_answers_is_not_few() -> None:
    for tpir, count in ((0.5, 0), (0.499, 1), (None, 0)):
        assert len(caveats(Point(0.5, "certified", 0.1, rates=Rates(tpir=tpir)))) == count


def test_the_scatter_between_items_is_described() -> None:
    alike, unlike = (calibrate(searches(200, hard=hard)) for hard in (0.0, 0.2))
    (low, high), (lowest, highest) = (point.basis.fpir_on_other_half or () for point in (alike, unlike))
    assert lowest < low < 0.05 < high < highest
    assert f"between {lowest:.3f} and {highest:.3f}" in caveats(unlike)[0]


def test_few_answers_are_described() -> None:
    found, lost = calibrate(searches(100)), calibrate(searches(100, farther=0.4))
    assert len(caveats(found)) == 1
    assert f"Only {lost.rates.tpir:.0%}" in caveats(lost)[1]
