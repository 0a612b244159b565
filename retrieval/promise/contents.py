"""The contents of a promise: what was measured, and what decisions need."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from index.search.item_distance import ItemDistance

from .levels import DrawnVectors, Level, PValues
from .metric import Metric
from .neighbours import ItemMeans

GROWTH = 1.1  # times as many items, for which a threshold on the score is said to hold


@dataclass(frozen=True)
class Contents:
    """Thresholds of a collection with their error rates."""

    name: str  # of the collection
    metric: Metric
    vectors: int
    items: int
    dimension: int
    target_fpir: float  # at which decisions are made
    levels: tuple[Level, ...]  # by descending target
    distance: ItemDistance
    p_values_of_scores: PValues
    p_values_of_distances: PValues
    known: str  # the mated queries: catalogue photos, or labelled queries
    largest_gap: float  # largest difference between the cosines to the nearest and to the average photo of an item
    fingerprint: dict[str, str]  # bits of the means of some items, by a hash of the item id
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    twins: tuple[tuple[str, str], ...] = ()  # pairs of items that look like one item under two ids
    twins_cost: float | None = None  # TPIR that they cost
    measured: str = ""  # date
    means: ItemMeans | None = None  # None without them: decisions go by the score alone
    drawn: DrawnVectors | None = field(default=None, compare=False, repr=False)  # kept after a measurement only

    @property
    def level(self) -> Level:
        """The level at which decisions are made."""
        return next(each for each in self.levels if math.isclose(each.target_fpir, self.target_fpir))

    @property
    def holds_for_items(self) -> int:
        """The number of items up to which the threshold on the score is said to hold, with two digits."""
        unit = int(10 ** max(0, len(str(self.items)) - 2))
        return max(self.items, round(GROWTH * self.items / unit) * unit)
