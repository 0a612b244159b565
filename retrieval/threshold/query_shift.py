"""Query shift: how much farther users' photos are from other items than gallery photos of the same items are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.search.leave_one_out import OWN, Draws
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.metrics.identification import SearchScores

from .error_rates import LABELLED, LEAST_ITEMS, PROBE, REFERENCE

QUANTILES = np.linspace(0.02, 0.25, 24)  # the shift is the mean difference of these quantiles
RESAMPLES = 200
MARGIN = 0.5  # standard errors of a shift that certified thresholds allow for

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Shift:
    """The difference in distance to other items between users' photos and gallery photos of the same items."""

    value: float = 0.0
    error: float = 0.0  # standard error, by bootstrap over items
    items: int = 0

    @classmethod
    def of(cls, point: OperatingPoint) -> Shift:
        """Return the shift that an operating point was set with."""
        values = point.evidence.get("shift", {})
        return cls(*(values.get(name, 0) for name in ("value", "error", "items")))

    @property
    def applied(self) -> float:
        """The shift, or 0 if it does not exceed its standard error."""
        return self.value if abs(self.value) > self.error else 0.0

    @property
    def margin(self) -> float:
        """The amount by which the applied shift may be too great, which certified thresholds allow for."""
        return max(0.0, self.applied - self.value + MARGIN * self.error)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**vars(self), "applied": self.applied, "margin": self.margin}


def measure_shift(queries: SearchScores, gallery: SearchScores, *, seed: int = 0) -> Shift:
    """Measure the query shift from searches with two kinds of photos of the same items.

    Parameters
    ----------
    queries, gallery:
        Searches (n,) with users' photos and (m,) with gallery photos. `impostor` is the distance to the nearest other
        item. Only items in both are used.
    """
    items = np.intersect1d(queries.labels, gallery.labels)
    if len(items) < LEAST_ITEMS:
        return Shift(items=len(items))
    users, catalogue = (_Side.of(scores, items) for scores in (queries, gallery))

    def difference(copies: NDArray[np.int64]) -> float:
        return float((users.quantiles(copies) - catalogue.quantiles(copies)).mean())

    generator, count = np.random.default_rng(seed), len(items)
    resampled = [
        difference(np.bincount(generator.integers(0, count, count), minlength=count)) for _ in range(RESAMPLES)
    ]
    return Shift(difference(np.ones(count, np.int64)), float(np.std(resampled)), count)


def gallery_shift(sources: Mapping[str, Draws]) -> Shift:
    """Return the query shift, from labelled queries if there are enough, else from the bundle's calibration photos."""
    for users, catalogue in ((LABELLED, OWN), (PROBE, REFERENCE)):
        if users in sources and catalogue in sources:
            shift = measure_shift(_searches(sources[users]), _searches(sources[catalogue]))
            if shift.items >= LEAST_ITEMS:
                return shift
    return Shift()


def _searches(draws: Draws) -> SearchScores:
    finite = np.isfinite(draws.distances)
    return SearchScores(draws.items[finite], draws.own[finite], draws.distances[finite], 0)


@dataclass(frozen=True)
class _Side:
    """The distances (n,) of the photos of one kind, ascending, with the number of each one's item and its weight."""

    distances: Floats
    codes: NDArray[np.int64]
    weights: Floats  # 1 / photos of the item

    @classmethod
    def of(cls, scores: SearchScores, items: NDArray[np.generic]) -> _Side:
        """Return the side of some items (k,), ascending."""
        chosen = np.flatnonzero(np.isin(scores.labels, items))
        codes = np.searchsorted(items, scores.labels[chosen])
        order = np.argsort(scores.impostor[chosen], kind="stable")
        weights = 1 / np.bincount(codes, minlength=len(items))[codes]
        return cls(scores.impostor[chosen][order], codes[order], weights[order])

    def quantiles(self, copies: NDArray[np.int64]) -> Floats:
        """Return the quantiles of a sample with some copies of each item (k,), with items weighted equally."""
        rows = np.repeat(np.arange(len(self.codes)), copies[self.codes])
        weights = self.weights[rows] / copies.sum()
        middles = np.cumsum(weights) - weights / 2
        return np.interp(QUANTILES, middles, self.distances[rows])
