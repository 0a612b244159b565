"""Twins, which look like one item under two ids, and the families of similar items that cause false matches.

Shapes: n items.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
from numpy.typing import NDArray

from index.search.distance import accepts
from index.search.left_out import CLOSE

from .draws import Draws

FOUND, BEFORE = 0.75, 0.3  # minimum shares of the draws of a pair


def suspected_twins(own: Draws) -> list[tuple[str, str]]:
    """Return pairs of items that look like one item under two ids, in alphabetical order.

    The draws of each item find the other item of the pair most often. Of the draws of both items, at least three in
    four find the other item, and three in ten find it even before their own. If an item has one photo only, three in
    ten must be near copies instead.
    """
    before = np.where(np.isfinite(own.own), np.isfinite(own.wrong), accepts(own.plain, CLOSE))
    counts, hits = Counter(own.items.tolist()), defaultdict[str, dict[str, list[bool]]](dict)
    for item, other, is_before in zip(own.items.tolist(), own.nearest_items.tolist(), before.tolist(), strict=True):
        hits[item].setdefault(other, []).append(is_before)
    nearest = {item: max(sorted(others), key=lambda other: len(others[other])) for item, others in hits.items()}
    pairs = []
    for item, other in sorted(nearest.items()):
        if item < other and nearest.get(other) == item:
            draws, count = hits[item][other] + hits[other][item], counts[item] + counts[other]
            if len(draws) >= FOUND * count and sum(draws) >= BEFORE * count:
                pairs.append((item, other))
    return pairs


def linked(nearest: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the family (n,) of each item, from the number of its nearest other item (n,), -1 if there is none."""
    count = len(nearest)
    target = np.where(nearest >= 0, nearest, np.arange(count))
    families = np.arange(count)
    while True:
        lowest = np.minimum(families, families[target])
        np.minimum.at(lowest, target, lowest.copy())
        if (lowest == families).all():
            break
        families = lowest
    return np.unique(families, return_inverse=True)[1]


def false_matches(
    own: Draws, threshold: float, *, most: int
) -> tuple[list[tuple[list[str], float]], list[tuple[str, float]]]:
    """Return the families with the most false matches, and the items that are returned most, with their shares.

    A family is the items that are linked by being nearest to each other; items without one are left out. `own` are own
    draws, of which those within the threshold are false matches. Both lists have up to `most` entries.
    """
    usable = np.flatnonzero(np.isfinite(own.distances) & ~own.is_copied)
    usable = usable[np.argsort(-own.distances[usable], kind="stable")]
    names, codes = np.unique(np.r_[own.items[usable], own.nearest_items[usable]], return_inverse=True)
    asked, other = np.split(codes, 2)
    nearest = np.full(len(names), -1)
    nearest[asked] = other  # of several draws of an item, that of the last, which is the closest
    families = linked(nearest)
    wrong = accepts(own.distances[usable], threshold)
    worst = [
        (names[members].tolist(), share)
        for family, share in _most(families[asked[wrong]], most)
        if len(members := np.flatnonzero(families == family)) > 1
    ]
    return worst, [(str(names[item]), share) for item, share in _most(other[wrong], most)]


def _most(numbers: NDArray[np.int64], most: int) -> list[tuple[int, float]]:
    """Return the numbers (n,) that occur most often, and their shares."""
    counts = np.bincount(numbers)
    order = np.argsort(-counts, kind="stable")[:most].tolist()
    return [(n, float(counts[n] / len(numbers))) for n in order if counts[n]]
