"""Sides of a promise: from a point, from the rates of a version, and in words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from retrieval.measuring.point import BUNDLE, CERTIFIED, ESTIMATED, GALLERY, PROMISE, Perhaps, Point, Rates
from retrieval.measuring.rates import VersionRates
from retrieval.measuring.sides import Sides, in_words, of_photos, sides_of

from .samples import drawn_from, draws

RATES = Rates(fpir=0.04, fpir_expected=0.05, tpir=0.48, closest_is_right=0.79)
POINT = Point(0.5, ESTIMATED, 0.05, GALLERY, RATES, perhaps=Perhaps(0.6, 0.7, 12, known=0.13, unknown=0.048))


def test_a_point_tells_all_sides_in_words() -> None:
    sides = sides_of(POINT)
    assert sides == Sides(0.48, 0.13, 0.79, 0.05, 0.048)
    assert in_words(Sides(0.48, 0.13, 0.79, 0.05, 0.048)) == (
        "Says for sure in 5 of 10, asks in 1 of 10, the right thing comes first among the closest in 8 of 10; "
        "of things we do not have, 1 of 20 is called something, 1 of 21 is asked about"
    )
    assert "3 of 1,000 are called something" in in_words(Sides(unknown_called=0.003))
    assert "fewer than 1 of 1,000 is called something" in in_words(Sides(unknown_called=0.0001))


@pytest.mark.parametrize("status", [ESTIMATED, CERTIFIED])
@pytest.mark.parametrize(("origin", "is_told"), [(GALLERY, True), (PROMISE, True), (BUNDLE, False)])
def test_a_point_that_was_measured_elsewhere_tells_nothing(origin: str, is_told: bool, status: str) -> None:
    moved = replace(POINT, origin=origin, status=status)  # type: ignore[arg-type]
    assert (sides_of(moved) is not None) == is_told
    assert sides_of(Point.uncalibrated(0.05, origin=GALLERY)) is None


def test_what_was_not_measured_is_not_said() -> None:
    never = sides_of(replace(POINT, perhaps=None))
    assert never == Sides(0.48, 0.0, 0.79, 0.05, 0.0)
    assert "ask" not in in_words(never)
    flat = sides_of(replace(POINT, perhaps=None, rates=Rates(fpir_expected=0.05)))
    assert flat == Sides(unknown_called=0.05, unknown_asked=0.0)
    assert in_words(flat) == "Of things we do not have, 1 of 20 is called something"
    old = sides_of(replace(POINT, perhaps=Perhaps(0.6)))  # of a version that did not measure both rates
    assert old is not None
    assert (old.known_asked, old.unknown_asked) == (None, None)
    assert in_words(Sides()) == ""
    assert in_words(Sides(known_sure=0.3)) == "Says for sure in 3 of 10"


def test_the_rates_of_a_version_tell_how_often_unknown_things_match_there() -> None:
    rates = VersionRates(drawn_from(draws(np.linspace(0.1, 1, 40), np.arange(40))))
    sides = sides_of(POINT, rates)
    assert sides is not None
    assert sides.unknown_called == rates.expected(0.5) > 0.4
    assert sides.known_sure == 0.48


@pytest.mark.parametrize(
    ("share", "at_most", "told"),
    [
        *[(0.0001, False, "fewer than 1 of 1,000"), (0.0006, False, "1 of 1,000"), (0.0094, False, "9 of 1,000")],
        *[(0.0096, False, "1 of 104"), (0.05, False, "1 of 20"), (0.096, False, "1 of 10"), (0.62, False, "6 of 10")],
        *[(0.996, False, "10 of 10"), (0.112, True, "1 of 8"), (0.147, True, "1 of 6"), (0.31, True, "4 of 10")],
        *[(0.0301, True, "1 of 33"), (0.0061, True, "7 of 1,000")],
    ],
)
def test_shares_are_told_in_photos_and_bounds_never_smaller_than_they_are(
    share: float, at_most: bool, told: str
) -> None:
    assert of_photos(share, at_most=at_most) == told
