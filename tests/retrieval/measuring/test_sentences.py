"""Sentences on points and on promises."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from retrieval.measuring.draws import NAMES
from retrieval.measuring.point import Basis, Point, Rates
from retrieval.measuring.sentences import caveats, describe_briefly, describe_names, warning_of
from retrieval.text import apart

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


class Measured:
    """Rates of a gallery in which a point breaks its promise."""

    def __init__(self, expected: float, upper: float) -> None:
        self._expected, self._upper = expected, upper

    def broken(self, point: Point) -> bool:
        return True

    def expected(self, threshold: float) -> float:
        return self._expected

    def fpir_upper(self, threshold: float) -> float:
        return self._upper


@pytest.mark.parametrize(
    ("status", "expected", "upper", "told"),
    [
        (
            "estimated",
            0.0504,
            0.19,
            "5.04% of searches (at most 19.0% with 95 % confidence), above the target of 5.00%",
        ),
        ("estimated", 0.071, 0.19, "7.1% of searches (at most 19.0% with 95 % confidence), above the target of 5.0%"),
        (
            "certified",
            0.05,
            0.064,
            "5.0% of searches (at most 6.4% with 95 % confidence), a bound above the target of 5.0%",
        ),
        (
            "certified",
            0.02,
            0.05004,
            "2.0% of searches (at most 5.004% with 95 % confidence), a bound above the target of 5.000%",
        ),
    ],
)
def test_a_warning_of_a_broken_promise_compares_numbers_that_differ(
    status: Any, expected: float, upper: float, told: str
) -> None:
    rates: Any = Measured(expected, upper)
    assert f"returns a match in {told}. " in warning_of(Point(0.5, status, 0.05, basis=Basis()), rates)


def test_shares_are_told_apart_by_as_few_digits_as_needed() -> None:
    assert apart(0.2, 0.05) == ("20.0%", "5.0%")
    assert apart(0.050000001, 0.05) == ("5.0000001%", "5.0000000%")
    assert apart(0.05, 0.05) == ("5.0%", "5.0%")
