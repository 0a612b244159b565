"""Families of items, found by linking each item to its nearest other item.

Items of one family resemble each other, so their errors are not independent. A family is a connected component of the
links, with at least two items, so no distance limit has to be chosen. Families tend to be too large rather than too
small, which makes a bound over families conservative.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BLOCK = 1024  # items compared at a time


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


def families_of_photos(vectors: NDArray[np.float32], items: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return the family of each photo's item (n,), from unit vectors (n, d) and items (n,), compared by their means."""
    names, codes = np.unique(items, return_inverse=True)
    means = np.zeros((len(names), vectors.shape[1]))
    np.add.at(means, codes, vectors)
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    nearest = np.full(len(names), -1)
    for start in range(0, len(names) if len(names) > 1 else 0, BLOCK):
        alike = means[start : start + BLOCK] @ means.T
        rows = np.arange(len(alike))
        alike[rows, start + rows] = -2
        nearest[start : start + BLOCK] = alike.argmax(axis=1)
    return linked(nearest)[codes]
