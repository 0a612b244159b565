"""Drift monitor: compare live photos with those the threshold was calibrated on.

Norm and appearance are compared with the calibration photos. Nearest distances are compared with the first 2,000
live searches, because a catalogue may legitimately differ from the calibration items; the calibration median is
reported too. The effect is the two-sample Kolmogorov-Smirnov statistic: the largest difference between the empirical
distribution functions. An alarm needs a minimum number of searches and a minimum effect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from retrieval.bundle.bundle import Bundle
from retrieval.images import Appearance
from retrieval.search.result import SearchResult

WINDOW = 1000  # newest searches compared
LEAST = 200  # minimum number of searches and of reference values
EFFECT = 0.25  # alarm above this statistic; chance alone reaches 0.12 with 200 against 200 values
FIRST = 2000  # first live searches, the reference of nearest distances
NORM, NEAREST = "norm", "nearest_distance"
STATISTICS = (NORM, *(field.name for field in fields(Appearance)), NEAREST)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Drift:
    """Drift of one statistic."""

    statistic: str
    effect: float | None  # None: too few searches or no reference
    alarm: bool
    searches: int
    reference: int  # number of reference values
    median: float | None
    reference_median: float | None
    calibration_median: float | None


class DriftMonitor:
    """Rolling window of search statistics with their references."""

    def __init__(self, bundle: Bundle) -> None:
        self._guard = Lock()
        self._calibration = _calibration(bundle)
        self._seen: dict[str, deque[float]] = {name: deque(maxlen=WINDOW) for name in STATISTICS}
        self._first: list[float] = []

    def observe(self, result: SearchResult) -> None:
        """Record the statistics of an answer."""
        values = {} if result.embedding_norm is None else {NORM: result.embedding_norm}
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
        """Return the drift of each statistic."""
        with self._guard:
            seen = {name: np.asarray(values, np.float64) for name, values in self._seen.items()}
            first = np.asarray(self._first, np.float64)
        drifts = []
        for name, values in seen.items():
            calibration = self._calibration.get(name, np.zeros(0))
            reference = calibration if name != NEAREST else first
            enough = len(values) >= LEAST and len(reference) >= (FIRST if name == NEAREST else LEAST)
            effect = largest_difference(values, reference) if enough else None
            alarm = effect is not None and effect > EFFECT
            medians = _median(values), _median(reference), _median(calibration)
            drifts.append(Drift(name, effect, alarm, len(values), len(reference), *medians))
        return drifts


def drift_warning(drifts: Sequence[Drift]) -> str:
    """Return a warning that names the alarming statistics, or an empty string."""
    names = [drift.statistic.replace("_", " ") for drift in drifts if drift.alarm]
    if not names:
        return ""
    return (
        f"The newest photos differ in {', '.join(names)} from those that the threshold was set on, so its error "
        "rate may not hold. Look at some of them, and calibrate with such photos (--queries)"
    )


def largest_difference(first: Floats, second: Floats) -> float:
    """Return the two-sample Kolmogorov-Smirnov statistic of two samples."""
    first, second = np.sort(first), np.sort(second)
    values = np.concatenate([first, second])
    below = [np.searchsorted(sample, values, side="right") / len(sample) for sample in (first, second)]
    return float(np.abs(below[0] - below[1]).max())


def _calibration(bundle: Bundle) -> dict[str, Floats]:
    searches = bundle.calibration
    if searches is None:
        return {}
    names = [field.name for field in fields(Appearance)]
    return {
        NORM: searches.certainties.astype(np.float64),
        NEAREST: np.minimum(searches.scores.own, searches.scores.impostor),
        **dict(zip(names, searches.appearances.T.astype(np.float64), strict=True)),
    }


def _median(values: Floats) -> float | None:
    return float(np.median(values)) if len(values) else None
