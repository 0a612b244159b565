"""Whether live photos look as those did that the threshold was set on.

Certainty and appearance are compared with the calibration's; nearest distances with the first 2,000 live searches of
the gallery, because a catalogue that answers other questions than the calibration asked is no fault (the
calibration's stand beside). The distance of two samples is the Kolmogorov-Smirnov statistic: the largest difference
of their shares below any value. It needs a minimum of searches, and a size that matters, before it alarms.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from retrieval.bundle.bundle import CALIBRATION, Bundle
from retrieval.images import Appearance
from retrieval.result import SearchResult
from retrieval.threshold.recalibrate import searches_of

WINDOW = 1000  # newest searches that are compared
LEAST = 200  # searches, and values of the reference, before anything is said
EFFECT = 0.25  # of the statistic, from which it alarms: chance alone reaches 0.12 with 200 against 200
FIRST = 2000  # live searches that nearest distances are compared with
CERTAINTY, NEAREST = "certainty", "nearest_distance"
STATISTICS = (CERTAINTY, *(field.name for field in fields(Appearance)), NEAREST)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Drift:
    """How far one statistic has moved."""

    statistic: str
    effect: float | None  # None: too few searches, or nothing to compare with
    alarm: bool
    searches: int
    reference: int  # values compared with
    median: float | None
    reference_median: float | None
    calibration_median: float | None


class Monitor:
    """The newest searches, beside what they should look like."""

    def __init__(self, bundle: Bundle) -> None:
        self._guard = Lock()
        self._calibration = _calibration(bundle)
        self._seen: dict[str, deque[float]] = {name: deque(maxlen=WINDOW) for name in STATISTICS}
        self._first: list[float] = []

    def observe(self, result: SearchResult) -> None:
        """Take note of an answer."""
        values = {CERTAINTY: result.certainty}
        if result.appearance is not None:
            values |= vars(result.appearance)
        with self._guard:
            for name, value in values.items():
                self._seen[name].append(value)
            if result.nearest_distance is not None:
                self._seen[NEAREST].append(result.nearest_distance)
                if len(self._first) < FIRST:
                    self._first.append(result.nearest_distance)

    def state(self) -> list[Drift]:
        """Return how far each statistic has moved."""
        with self._guard:
            seen = {name: np.array(values) for name, values in self._seen.items()}
            first = np.array(self._first)
        found = []
        for name, values in seen.items():
            calibration = self._calibration.get(name, np.zeros(0))
            reference = calibration if name != NEAREST else first
            enough = len(values) >= LEAST and len(reference) >= (FIRST if name == NEAREST else LEAST)
            effect = largest_difference(values, reference) if enough else None
            found.append(
                Drift(
                    name,
                    effect,
                    effect is not None and effect > EFFECT,
                    len(values),
                    len(reference),
                    _median(values),
                    _median(reference),
                    _median(calibration),
                )
            )
        return found

    def warning(self) -> str:
        """Say which statistics alarm; empty where none does."""
        names = [drift.statistic.replace("_", " ") for drift in self.state() if drift.alarm]
        if not names:
            return ""
        return (
            f"The newest photos differ in {', '.join(names)} from what the threshold was set on: its promise may not "
            "hold for them. Look at some, and calibrate with photos like these"
        )


def largest_difference(one: Floats, other: Floats) -> float:
    """Return the two-sample Kolmogorov-Smirnov statistic of two samples."""
    one, other = np.sort(one), np.sort(other)
    values = np.concatenate([one, other])
    below = [np.searchsorted(sample, values, side="right") / len(sample) for sample in (one, other)]
    return float(np.abs(below[0] - below[1]).max())


def _calibration(bundle: Bundle) -> dict[str, Floats]:
    if CALIBRATION not in bundle.manifest["files"]:
        return {}
    searches = searches_of(bundle)
    found = {
        CERTAINTY: searches.certainties.astype(np.float64),
        NEAREST: np.minimum(searches.scores.own, searches.scores.impostor),
    }
    if searches.appearances is not None:
        names = [field.name for field in fields(Appearance)]
        found |= dict(zip(names, searches.appearances.T.astype(np.float64), strict=True))
    return found


def _median(values: Floats) -> float | None:
    return float(np.median(values)) if len(values) else None
