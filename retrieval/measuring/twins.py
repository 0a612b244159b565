"""Twins: pairs of items that look like one item under two ids."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

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
