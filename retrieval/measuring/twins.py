"""Twins: pairs of items that look like one item under two ids."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from index.search.distance import accepts
from index.search.left_out import CLOSE

from .draws import Draws

FOUND, BEFORE = 0.75, 0.3  # shares of the draws of two items


def suspected_twins(own: Draws) -> list[tuple[str, str]]:
    """Return pairs of items that look like one item under two ids, in alphabetical order.

    Each is the item that the draws of the other find most often. Of the draws of both, three quarters find the other
    item, and three of ten find it even before their own item. Items with one photo need photos that are nearly copies.
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
