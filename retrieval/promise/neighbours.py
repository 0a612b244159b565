"""Item distances of the neighbours that a database returned for a query, with every item of the collection as a rival.

The item distance of an item needs its nearest photo and the mean of its photos. The file of a promise has the means of
all items, and the database returned the nearest photos. An item without a photo in the list is a rival all the same.
Its nearest photo counts as far as the last neighbour, so a short list makes rivals nearer than they are, and the item
distances of neighbours greater: never smaller than those of a full search.

Behind a filter or an approximate index, near photos of other items may be missing as well. The nearest photo of an
item is at most as far as its average photo, so it counts as far as that where this is nearer than the last neighbour.

The steps, for a query q of length one, in any language. The plain distance of a cosine s is sqrt(2 - 2 s). Constants
without a value here are in the file of the promise.

1. a(i) is the plain distance to the nearest photo of item i in the list, and `last` that of the last neighbour.
2. m(i) is the mean of item i in the file, scaled to length one, c(i) the plain distance from q to m(i), and
   average(i) = (q · m(i)) cosine(i). An item that is not in the file has c = a, and a group of its own.
3. The list is *partial* if an absent item of the file has average > 1 - last² / 2 + 0.002. It is *short* if it is
   partial, or has fewer than 24 items and fewer than all. Then a = min(last, sqrt(2 - 2 average)) for each absent item.
4. The own distance is u = nearest a + mean c - 3 max(0, 1 - a / copy).
5. Rivals of an item are the other items that are not of its group: the nearest 24 of the list by a, or, if it is short,
   all of the list and all absent ones. With their own distances within 0 to sqrt(2), ascending r1 to r5,
   D = max(0, u + rival (sqrt(2) - r1) + rivals (5 sqrt(2) - r1 - ... - r5) / 5), and a missing one counts sqrt(2).
6. Answers are the nearest 24 items of the list by a, ordered by u. Those with D <= threshold match if the first does.
   If the list is short and not partial, and an absent item has a u that is not greater than the first answer's, there
   is no match.

Shapes: k neighbours, u items of the file, m items in the list, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from index.search.distance import Floats, Rows, exact_unit
from index.search.exact import NONE
from index.search.item_distance import (
    CANDIDATES,
    MOST_PHOTOS,
    RIVALS,
    ItemDistance,
    may_be_nearer,
    unseen_nearest,
)

from .metric import Metric

ABSENT = 64  # absent items whose distances are computed exactly, at least
PART = 4096  # of the absent items, whose nearest bound how far the nearest are
COPY = ItemDistance.default().copy  # largest plain distance of a copy
LEAST_FIT = 4  # items that show whether scores fit the metric


@dataclass(frozen=True)
class ItemMeans:
    """The mean photos of the items of a collection."""

    ids: NDArray[np.str_]  # (u,) ascending
    means: NDArray[np.float32]  # (u, d) of length one
    groups: Rows  # (u,) numbers of their groups
    cosines: NDArray[np.float32]  # (u,) average cosine between the mean and the photos whose mean it is

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The row of each item."""
        return {item: row for row, item in enumerate(self.ids.tolist())}

    @cached_property
    def largest_group(self) -> int:
        """The number of items of the largest group."""
        return int(np.unique(self.groups, return_counts=True)[1].max(initial=1))

    def cosines_to(self, query: Floats) -> NDArray[np.float32]:
        """Return the cosines between a query (d,) and the means (u,)."""
        return np.asarray(self.means @ query.astype(np.float32))


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
        items.setdefault(item, (float(distances[place]), score))
    nearest = np.array([distance for distance, _ in items.values()])
    return Listed(list(items), nearest, [score for _, score in items.values()], float(distances.max()))


def measure_items(query: Floats, found: Listed, means: ItemMeans, distance: ItemDistance) -> Measured:
    """Return the item distances of the neighbours of a query (d,) of length one."""
    rows = np.array([means.numbers.get(item, NONE) for item in found.items])
    known, absent = rows != NONE, np.ones(len(means.ids), bool)
    absent[rows[known]] = False
    cosines = means.cosines_to(query)
    averages = cosines * means.cosines  # average cosine between the query and the photos of each item
    is_partial = bool(may_be_nearer(found.last, averages[absent]).any())
    is_short = is_partial or len(rows) < min(CANDIDATES, len(means.ids) + int((~known).sum()))
    taken = slice(None) if is_short else slice(CANDIDATES)
    rows, nearest = rows[taken], found.nearest[taken]
    known = rows != NONE
    mean = nearest.copy()  # an item that the file does not know counts as an item with one photo
    mean[known] = _to_means(query, means, rows[known])
    own, groups = distance.own(nearest, mean), np.where(known, means.groups[rows], NONE - np.arange(len(rows)))
    others, other_groups = np.zeros(0), np.zeros(0, np.int64)
    if is_short:
        near = unseen_nearest(found.last, averages)
        others, other_groups = _absent(query, cosines, near, np.flatnonzero(absent), means, distance)
    every, groups = np.concatenate([own, others]), np.concatenate([groups, other_groups])
    order = np.argsort(every, kind="stable")
    answers = own[:CANDIDATES]  # as of a full search: an item with many nearer items is no answer
    columns = np.argsort(order)[None, : len(answers)]
    distances = distance.with_rivals(every[order][None], groups[order][None], columns=columns)[0]
    best = np.argsort(answers, kind="stable")
    return Measured(
        items=[found.items[row] for row in best],
        distances=distances[best],
        scores=[found.scores[row] for row in best],
        is_first=is_partial or not len(others) or bool(own[best[0]] < others.min()),
        is_short=is_short,
    )


def gaps(query: Floats, found: Listed, means: ItemMeans) -> tuple[Floats, Floats]:
    """Return how much nearer, as a cosine, the nearest photo of each known item is than its average photo, and can be.

    Photos that are alike are as near as their average: of p numbers with a variance, none exceeds the mean by more than
    sqrt(p - 1) standard deviations. Copies of the query, such as a placeholder photo of many items, are left out.
    """
    rows = np.array([means.numbers.get(item, NONE) for item in found.items])
    known = (rows != NONE) & (found.nearest > COPY)
    cosines = means.cosines[rows[known]].astype(np.float64)
    averages = (means.means[rows[known]] @ query) * cosines
    most = np.sqrt((MOST_PHOTOS - 1) * np.maximum(1 - cosines**2, 0))
    return np.asarray(1 - found.nearest[known] ** 2 / 2 - averages), most


def _absent(
    query: Floats,
    cosines: NDArray[np.float32],
    near: NDArray[Any],
    absent: Rows,
    means: ItemMeans,
    distance: ItemDistance,
) -> tuple[Floats, Rows]:
    """Return the own distances of the nearest of the items that are not in the list, and their groups.

    `cosines` and `near` (u,) are the cosines to the means, and how far the nearest photos count.
    """
    count = min(len(absent), max(ABSENT, 2 * (RIVALS + means.largest_group)))
    if not count:
        return np.zeros(0), np.zeros(0, np.int64)
    rough = distance.own(near[absent], np.sqrt(np.maximum(2 - 2 * cosines[absent], 0)))
    limit = np.partition(rough[: max(PART, count)], count - 1)[count - 1]  # none of the nearest is farther: cheaper
    some = np.flatnonzero(rough <= limit)
    rows = absent[some[np.argpartition(rough[some], count - 1)[:count]]]
    return distance.own(near[rows].astype(np.float64), _to_means(query, means, rows)), means.groups[rows]


def _to_means(query: Floats, means: ItemMeans, rows: Rows) -> Floats:
    """Return the plain distances to the means of items."""
    difference = query - exact_unit(means.means[rows])
    return np.asarray(np.sqrt(np.vecdot(difference, difference)))
