"""Levels: for each target FPIR, the thresholds on the own score and on the item distance of a collection.

Shapes: n vectors, d = embedding size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from index.photos.arrays import ArrayPhotos
from index.search.distance import Floats
from index.search.item_distance import NEAREST_PHOTO, ItemDistance
from retrieval.errors import counted
from retrieval.measuring.drawing import MOST_DRAWS, Drawing
from retrieval.measuring.draws import OWN, AllDraws, Draws, Probes
from retrieval.measuring.fpir import LEAST_ITEMS, TOLERANCE, DrawnDistances
from retrieval.measuring.labelled import by_source, query_shift
from retrieval.measuring.measure import Measurement, measure, without_copies
from retrieval.measuring.point import PROMISE, Point
from retrieval.measuring.rates import CATALOGUE_PHOTOS, Mated

from .metric import Metric

TARGETS = (0.05, 0.01, 0.001)
DRAWS_PER_TARGET = 20  # draws / target: so many draws are accepted at a threshold, where there are enough items
EXACT, KNOTS = 1000, 1000  # p-values: draws that are kept one by one, and knots for the others


@dataclass(frozen=True)
class Limit:
    """A threshold and its rates."""

    threshold: float  # a score of the collection, or an item distance
    fpir: float  # to expect of new items
    fpir_upper: float  # upper 95 % bound
    tpir: float | None  # None if no item has two vectors
    perhaps: float | None = None  # score or item distance up to which the first item is worth a question

    @classmethod
    def of(cls, point: Point, metric: Metric | None = None) -> Self:
        """Return the threshold of a point, as a score of a metric if one is given."""
        perhaps = None if point.perhaps is None else point.perhaps.within
        values = [point.threshold, point.threshold if perhaps is None else perhaps]
        if metric is not None:
            values = metric.scores(values).tolist()
        rates = point.rates
        assert rates.fpir_expected is not None and rates.fpir_upper is not None  # noqa: S101, PT018 (a measured point)
        tpir = None if rates.tpir is None else float(rates.tpir)
        worth = None if perhaps is None else values[1]
        return cls(values[0], float(rates.fpir_expected), float(rates.fpir_upper), tpir, worth)


@dataclass(frozen=True)
class Level:
    """A target FPIR with its two thresholds, None where the draws do not support it."""

    target_fpir: float
    score: Limit | None
    item_distance: Limit | None
    why: str = ""  # why there is no threshold
    items_needed: int = 0  # items that support the target


@dataclass(frozen=True)
class PValues:
    """How close unknown items come: the share of draws within a distance, from which p-values follow."""

    distances: Floats  # (k,) plain or item distances, ascending
    shares: Floats  # (k,) share of the draws within each
    items: int

    @classmethod
    def of(cls, drawn: DrawnDistances) -> Self:
        """Return the closest draws one by one, and knots for the rest."""
        last = len(drawn.distances) - 1
        rows = np.unique(np.r_[np.arange(min(EXACT, last + 1)), np.linspace(0, last, KNOTS).round().astype(int)])
        return cls(drawn.distances[rows], np.minimum(np.cumsum(drawn.weights)[rows], 1.0), drawn.items)

    def at(self, distance: float) -> float:
        """Return the rate at which an unknown item comes at least as close, at least 1 / (1 + items)."""
        place = int(np.searchsorted(self.distances, distance, side="right"))
        share = float(self.shares[place - 1]) if place else 0.0
        return min(1.0, (1 + self.items * share) / (1 + self.items))


@dataclass(frozen=True)
class DrawnVectors:
    """Draws of vectors, by their nearest photo and by item distance."""

    photos: ArrayPhotos
    distance: ItemDistance
    by_score: AllDraws
    by_distance: AllDraws

    @classmethod
    def of(
        cls,
        photos: ArrayPhotos,
        distance: ItemDistance,
        *,
        queries: Probes | None = None,
        targets: Sequence[float] = TARGETS,
    ) -> Self:
        """Make the draws: as many as the smallest supported target needs, at most one per item beyond MOST_DRAWS."""
        supported = [target for target in targets if target * (1 + photos.item_count) >= 1]
        needed = math.ceil(DRAWS_PER_TARGET / min(supported, default=1.0))
        own = Drawing(photos, distance).own_by(
            [NEAREST_PHOTO, distance], max(MOST_DRAWS, min(needed, photos.item_count))
        )
        by_distance = []
        for draws, each in zip(own, (NEAREST_PHOTO, distance), strict=True):
            probes = {} if queries is None else by_source(queries)
            sources = {OWN: draws} | {name: Drawing(photos, each).probes(some) for name, some in probes.items()}
            by_distance.append(AllDraws("", without_copies(sources), frozenset(), mark=photos.mark))
        return cls(photos, distance, *by_distance)

    def measure(self, target_fpir: float) -> tuple[Measurement, Measurement]:
        """Return the measurements for a target, by own score and by item distance."""
        score = measure(self.photos, NEAREST_PHOTO, draws=self.by_score, target_fpir=target_fpir, origin=PROMISE)
        return score, measure(
            self.photos, self.distance, draws=self.by_distance, target_fpir=target_fpir, origin=PROMISE
        )

    def level(self, target_fpir: float, metric: Metric) -> Level:
        """Return the thresholds for a target."""
        score, distance = self.measure(target_fpir)
        why, needed = score.why or distance.why, self._items_needed(target_fpir) if score.why and distance.why else 0
        if needed:
            why = (
                f"an FPIR of {target_fpir:g} needs about {needed:,} items, and there are {self.photos.item_count:,}: "
                "add items, or choose a greater target_fpir"
            )
        return Level(
            target_fpir,
            None if score.point is None else Limit.of(score.point, metric),
            None if distance.point is None else Limit.of(distance.point),
            why,
            needed,
        )

    def p_values(self, *, by_score: bool) -> PValues:
        """Return the p-values of scores, as plain distances, or of item distances."""
        return PValues.of(self._drawn(by_score=by_score))

    def _drawn(self, *, by_score: bool) -> DrawnDistances:
        sources = (self.by_score if by_score else self.by_distance).sources
        return DrawnDistances.of(sources, shift=query_shift(sources))

    def _items_needed(self, target_fpir: float) -> int:
        """Return how many items like these support a target, 0 if these do."""
        smallest = min(self._drawn(by_score=by_score).smallest_target for by_score in (True, False))
        needed = math.ceil(1 / target_fpir - TOLERANCE) - 1, math.ceil(self.photos.item_count * smallest / target_fpir)
        return max(needed) if smallest > target_fpir + TOLERANCE else 0

    @property
    def own(self) -> Draws:
        """The own draws by item distance."""
        return self.by_distance.get(OWN)

    @property
    def known(self) -> str:
        """What the mated queries are: catalogue photos, or labelled queries."""
        mated = Mated.of(self.by_distance.sources, gallery_items=self.photos.item_count)
        return CATALOGUE_PHOTOS if mated is None else mated.photos


def assumptions(queries: Probes | None) -> tuple[str, ...]:
    """Return what thresholds of vectors assume, in plain sentences."""
    photos = "Queries are photos like those of the collection; this was not measured."
    if queries is not None:
        photos = f"Queries are photos like the {len(queries.ids):,} that were given."
    return (
        "Strangers are like the items of the collection: of the same families, in similar shares.",
        photos,
        "No item is in the collection under two ids, unless both are of one group.",
        "The model was not trained on these items.",
    )


def few_queries(queries: Probes | None) -> list[str]:
    """Return a warning if labelled queries show too few items to measure how they differ from the collection."""
    count = LEAST_ITEMS if queries is None else len({*queries.items} - {""})
    if count >= LEAST_ITEMS:
        return []
    items = counted(count, "item")
    return [f"The queries show {items} of the collection; from {LEAST_ITEMS} on, they show how users' photos differ."]
