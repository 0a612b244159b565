"""Sides of a promise: how often known photos are named or asked about, and how often unknown things are, in words."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .point import BUNDLE, Point
from .rates import VersionRates


@dataclass(frozen=True)
class Sides:
    """Shares, 0 to 1, of what searches in a gallery answer, None where they were not measured."""

    known_sure: float | None = None  # of photos of known things: the right one is a match
    known_asked: float | None = None  # answered with a question
    known_closest: float | None = None  # the right one comes first among the closest, match or not
    unknown_called: float | None = None  # of photos of unknown things: something is a match
    unknown_asked: float | None = None  # answered with a question


def sides_of(point: Point, rates: VersionRates | None = None) -> Sides | None:
    """Return the sides of a point, None if it does not decide or was measured elsewhere.

    With `rates`, unknown things are called something as often as in the version that these are of.
    """
    if not point.decides or point.origin == BUNDLE:
        return None
    told, asked = point.rates, point.perhaps
    known_asked, unknown_asked = (0.0, 0.0) if asked is None else (asked.known, asked.unknown)
    return Sides(
        told.tpir,
        None if told.tpir is None else known_asked,
        told.closest_is_right,
        told.fpir_expected if rates is None else rates.expected(point.threshold),
        unknown_asked,
    )


def in_words(sides: Sides) -> str:
    """Return a sentence with the sides that were measured; a question that is never asked is left out."""
    known = [
        _clause("says for sure in {}", sides.known_sure),
        _clause("asks in {}", sides.known_asked or None),
        _clause("the right thing comes first among the closest in {}", sides.known_closest),
    ]
    unknown = [
        _clause("{} {} called something", sides.unknown_called),
        _clause("{} {} asked about", sides.unknown_asked or None),
    ]
    parts = [", ".join(filter(None, known)), ", ".join(filter(None, unknown))]
    parts[1] = parts[1] and f"of things we do not have, {parts[1]}"
    text = "; ".join(filter(None, parts))
    return text[:1].upper() + text[1:]


def _clause(text: str, share: float | None) -> str:
    if share is None:
        return ""
    told = of_photos(share)
    return text.format(told, "is" if told.removeprefix("fewer than ").startswith("1 of ") else "are")


def of_photos(share: float, *, at_most: bool = False) -> str:
    """Return a share in words: "6 of 10", "1 of 20", "2 of 1,000"; with `at_most`, one that is no smaller."""
    nearest, below = (math.ceil, math.floor) if at_most else (round, round)
    if share >= (0.3 if at_most else 0.095):
        return f"{nearest(10 * share)} of 10"
    if share < 0.0005:
        return "fewer than 1 of 1,000"
    return f"1 of {below(1 / share)}" if share >= 0.0095 else f"{nearest(1000 * share)} of 1,000"
