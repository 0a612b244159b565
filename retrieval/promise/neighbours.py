"""Item distances of the neighbours that a database returned for a query, with every item of the collection as a rival.

The item distance of an item needs its nearest photo and the mean of its photos. The file of a promise has the means of
all items, and the database returned the nearest photos. An item without a photo in the list is a rival all the same.
Its nearest photo counts as far as the last neighbour, so a short list makes rivals nearer than they are, and the item
distances of neighbours greater: never smaller than those of a full search.

Behind a filter or an approximate index, near photos of other items may be missing as well. The nearest photo of an
item is at most as far as its average photo, so it counts as far as that where this is nearer than the last neighbour.

Shapes: k neighbours, u items of the file, m items in the list, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from index.search.distance import Floats, Rows, exact_unit
from index.search.exact import NONE
from index.search.item_distance import CANDIDATES, RIVALS, ItemDistance

from .metric import Metric

ABSENT = 64  # absent items whose distances are computed exactly, at least
SLACK = 2e-3  # of a cosine, for means in float16 and scores in float32
LEAST_FIT = 4  # items that show whether scores fit the metric


@dataclass(frozen=True)
class ItemMeans:
    """The mean photos of the items of a collection."""

    ids: NDArray[np.str_]  # (u,) ascending
    means: NDArray[np.float32]  # (u, d) of length one
    groups: Rows  # (u,) numbers of their groups
    cosines: NDArray[np.float32]  # (u,) average cosine between the mean and a photo of the item

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The row of each item."""
        return {item: row for row, item in enumerate(self.ids.tolist())}

    @cached_property
    def largest_group(self) -> int:
        """The number of items of the largest group."""
        return int(np.unique(self.groups, return_counts=True)[1].max(initial=1))

    def averages(self, query: Floats) -> NDArray[np.float32]:
        """Return the average cosine between a query (d,) and the photos of each item (u,)."""
        return np.asarray((self.means @ query.astype(np.float32)) * self.cosines)


class Listed(NamedTuple):
    """The items of the neighbours of a query, nearest first."""

    items: list[str]  # (m,)
    nearest: Floats  # (m,) plain distances to their nearest photos
    scores: list[float]  # (m,) of these
    last: float  # plain distance to the last neighbour


@dataclass(frozen=True)
class Measured:
    """The item distances of items that may be answers to a query."""

    items: list[str]  # best first; listed items only
    distances: Floats
    scores: list[float]
    is_first: bool  # whether no item that is not in the list can be nearer than the first
    is_short: bool  # whether the list lacks items that a full search compares


def listed(neighbours: Sequence[tuple[str, float]], metric: Metric) -> Listed:
    """Return the items of neighbours, which are pairs of an item id and a score, in any order."""
    distances = metric.distances([score for _, score in neighbours])
    items: dict[str, tuple[float, float]] = {}
    for place in np.argsort(distances, kind="stable").tolist():
        item, score = neighbours[place]
        items.setdefault(str(item), (float(distances[place]), float(score)))
    nearest = np.array([distance for distance, _ in items.values()])
    return Listed(list(items), nearest, [score for _, score in items.values()], float(distances.max()))


def measure_items(query: Floats, found: Listed, means: ItemMeans, distance: ItemDistance) -> Measured:
    """Return the item distances of the neighbours of a query (d,) of length one."""
    rows = np.array([means.numbers.get(item, NONE) for item in found.items])
    absent = np.ones(len(means.ids), bool)
    absent[rows[rows != NONE]] = False
    averages = means.averages(query)
    is_partial = bool((averages[absent] > 1 - found.last**2 / 2 + SLACK).any())
    is_short = is_partial or len(rows) < min(CANDIDATES, len(means.ids))
    taken = slice(None) if is_short else slice(CANDIDATES)
    rows, nearest = rows[taken], found.nearest[taken]
    known = rows != NONE
    mean = nearest.copy()  # an item that the file does not know counts as an item with one photo
    mean[known] = _to_means(query, means, rows[known])
    own, groups = distance.own(nearest, mean), np.where(known, means.groups[rows], NONE - np.arange(len(rows)))
    others, other_groups = np.zeros(0), np.zeros(0, np.int64)
    if is_short:
        others, other_groups = _absent(query, averages, np.flatnonzero(absent), means, distance, found.last)
    every, groups = np.concatenate([own, others]), np.concatenate([groups, other_groups])
    order = np.argsort(every, kind="stable")
    columns = np.argsort(order)[None, : len(own)]
    distances = distance.with_rivals(every[order][None], groups[order][None], columns=columns)[0]
    best = np.argsort(own, kind="stable")
    return Measured(
        items=[found.items[row] for row in best],
        distances=distances[best],
        scores=[found.scores[row] for row in best],
        is_first=is_partial or not len(others) or bool(own[best[0]] < others.min()),
        is_short=is_short,
    )


def gaps(query: Floats, found: Listed, means: ItemMeans) -> Floats:
    """Return how much nearer, as a cosine, the nearest photo of each known item of a list is than its average photo."""
    rows = np.array([means.numbers.get(item, NONE) for item in found.items])
    known = rows != NONE
    averages = (means.means[rows[known]] @ query) * means.cosines[rows[known]]
    return np.asarray(1 - found.nearest[known] ** 2 / 2 - averages)


def _absent(
    query: Floats, averages: NDArray[np.float32], rows: Rows, means: ItemMeans, distance: ItemDistance, last: float
) -> tuple[Floats, Rows]:
    """Return the own distances of the nearest of some items that are not in the list, and their groups."""
    count = min(len(rows), max(ABSENT, 2 * (RIVALS + means.largest_group)))
    if not count:
        return np.zeros(0), np.zeros(0, np.int64)
    cosines = averages[rows] / means.cosines[rows]
    near = np.minimum(last, np.sqrt(np.maximum(2 - 2 * averages[rows], 0)))
    rough = distance.own(near, np.sqrt(np.maximum(2 - 2 * cosines, 0)))
    chosen = np.argpartition(rough, count - 1)[:count]
    rows = rows[chosen]
    return distance.own(near[chosen], _to_means(query, means, rows)), means.groups[rows]


def _to_means(query: Floats, means: ItemMeans, rows: Rows) -> Floats:
    """Return the plain distances to the means of items."""
    difference = query - exact_unit(means.means[rows])
    return np.asarray(np.sqrt(np.vecdot(difference, difference)))
