"""Labelled queries: users' photos with item ids, on which the threshold of a collection is measured.

The *query shift* is how much farther users' photos are from other items than catalogue photos of the same items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from retrieval.metrics.identification import SearchScores

from .draws import LABELLED, OWN, PROBE, REFERENCE, UNKNOWN, Draws, Probes
from .fpir import LEAST_ITEMS, Floats
from .point import Shift

UNKNOWN_ITEM = "unknown item of the photo {}"
QUANTILES = np.linspace(0.02, 0.25, 24)  # the shift is the mean difference of these quantiles
RESAMPLES = 200


def by_source(queries: Probes) -> dict[str, Probes]:
    """Return labelled queries by source: LABELLED, and UNKNOWN where the item id is empty.

    Each photo of an unknown item counts as an item of its own, except that photos of one group count as one item.
    """
    sources = {}
    for source in (LABELLED, UNKNOWN):
        rows = [row for row, item in enumerate(queries.items) if (item == "") == (source == UNKNOWN)]
        if rows:
            found = queries.where(rows)
            items = [item or UNKNOWN_ITEM.format(photo) for item, photo in zip(found.items, found.ids, strict=True)]
            sources[source] = replace(found, items=items)
    return sources


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


def query_shift(sources: Mapping[str, Draws]) -> Shift:
    """Return the query shift, from labelled queries if there are enough, else from the bundle's calibration photos."""
    for users, catalogue in ((LABELLED, OWN), (PROBE, REFERENCE)):
        if users in sources and catalogue in sources:
            shown, own = sources[users], sources[catalogue]
            if users == PROBE:  # photos without a role are on both sides, and show no shift
                shown = shown.where(~np.isin(shown.ids, own.ids))
            shift = measure_shift(_searches(shown), _searches(own))
            if shift.items >= LEAST_ITEMS:
                return shift
    return Shift()


def _searches(draws: Draws) -> SearchScores:
    finite = np.isfinite(draws.distances)
    return SearchScores(draws.groups[finite], draws.own[finite], draws.distances[finite], 0)


@dataclass(frozen=True)
class _Side:
    """The distances (n,) of the photos of one kind, ascending, with the item number and the weight of each photo."""

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
