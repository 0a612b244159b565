"""Check a promise on the vectors as they are now: whether its thresholds still keep their rates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from retrieval.errors import CalibrationError, DataError
from retrieval.measuring.draws import AllDraws
from retrieval.measuring.labelled import query_shift
from retrieval.measuring.point import ESTIMATED, PROMISE, Point
from retrieval.measuring.rates import VersionRates

from .contents import Contents
from .table import percent, target_text, threshold_text
from .vectors import is_of_another_model


@dataclass(frozen=True)
class Checked:
    """A threshold of a promise, and its rates now."""

    name: str  # of the number that it limits, for people
    before: str  # threshold, for people
    now: str  # threshold that would be set now, "" if there is none
    fpir: float  # to expect of new items now
    fpir_upper: float
    target_fpir: float
    is_broken: bool  # whether the FPIR exceeds the target by more than its one-sided 95 % error

    def __str__(self) -> str:
        verdict = "broken: measure it again" if self.is_broken else "kept"
        now = f"; a new threshold would be {self.now}" if self.now else ""
        return (
            f"{self.name} {self.before}: {percent(self.fpir)} of strangers are called somebody now (at most "
            f"{percent(self.fpir_upper)}), the target is {target_text(self.target_fpir)}: {verdict}{now}."
        )


def checked(before: Contents, now: Contents) -> list[Checked]:
    """Return the thresholds of a promise at its own target, on the draws of a new measurement of the same collection.

    Raises
    ------
    DataError
        If the vectors are of another model than those that the promise was measured on.
    CalibrationError
        If there are too few items to tell.
    """
    if before.dimension != now.dimension or (
        now.means is not None and is_of_another_model(before.fingerprint, now.means)
    ):
        raise DataError(
            f"the vectors of {now.name} are of another model than those of {before.name} on {before.measured}",
            remedy="Measure a new promise for these vectors",
        )
    return list(_checked(before, now))


def _checked(before: Contents, now: Contents) -> Iterator[Checked]:
    level, new, drawn, metric = before.level, now.level, now.drawn, before.metric
    assert drawn is not None  # noqa: S101 (a measurement has draws)
    if level.score is not None:
        threshold = float(metric.distances(level.score.threshold))
        text = "" if new.score is None else threshold_text(new.score.threshold, metric)
        name = f"{metric.noun} {metric.sign}"
        rates = _rates(drawn.by_score, threshold, level.target_fpir)
        yield Checked(name, threshold_text(level.score.threshold, metric), text, *rates)
    if level.item_distance is not None:
        threshold = level.item_distance.threshold
        text = "" if new.item_distance is None else f"{new.item_distance.threshold:.4f}"
        rates = _rates(drawn.by_distance, threshold, level.target_fpir)
        yield Checked("decide(), item distance <=", f"{threshold:.4f}", text, *rates)


def _rates(draws: AllDraws, threshold: float, target_fpir: float) -> tuple[float, float, float, bool]:
    """Return the FPIR to expect, its bound, the target, and whether it is exceeded."""
    point = Point(threshold, ESTIMATED, target_fpir, PROMISE, shift=query_shift(draws.sources))
    rates = VersionRates.of(draws, point)
    if rates is None:
        raise CalibrationError("too few items can be drawn to check a threshold", remedy="Add items")
    return rates.expected(threshold), rates.fpir_upper(threshold), target_fpir, rates.broken(point)
