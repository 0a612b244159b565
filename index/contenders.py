"""Candidates that may be the nearest photo of one of the nearest items, by bounds of their distances.

Only these need exact distances: the answers are the same as with exact distances of all candidates.
Shapes: n queries, m candidates of each.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .distance import Floats


def contenders(items: NDArray[np.int32], least: Floats, most: Floats, k: int) -> NDArray[np.bool_]:
    """Return a mask (n, m) of candidates that may be the nearest photo of one of the k nearest items of their query.

    Parameters
    ----------
    items:
        Number of the item of each candidate (n, m).
    least, most:
        Bounds of their distances (n, m); both are inf where there is no candidate.
    """
    queries, width = items.shape
    keys = items.astype(np.int64) + (np.arange(queries, dtype=np.int64) << 32)[:, None]
    order = np.argsort(keys, axis=None)
    ordered = keys.ravel()[order]
    changes = np.ones(len(ordered), dtype=bool)
    changes[1:] = ordered[1:] != ordered[:-1]
    firsts = np.flatnonzero(changes)  # one for each item of each query
    nearest = np.minimum.reduceat(most.ravel()[order], firsts)
    numbers = ordered[firsts] >> 32  # the query of each
    starts = np.searchsorted(numbers, np.arange(queries + 1))
    kth = starts[:-1] + k - 1
    several = kth < starts[1:] - 1  # queries with more than k items
    if several.any():
        farthest = np.full(queries, np.inf)
        farthest[several] = nearest[np.lexsort((nearest, numbers))[kth[several]]]
        np.minimum(nearest, farthest[numbers], out=nearest)  # the k-th item is at most this far
    reach = np.empty(queries * width)
    reach[order] = np.repeat(nearest, np.diff(firsts, append=len(order)))
    return np.asarray((least <= reach.reshape(queries, width)) & (least < np.inf))


def first_places(items: list[int]) -> list[int]:
    """Return the first place of each item, in ascending order."""
    return sorted(dict(zip(reversed(items), range(len(items) - 1, -1, -1), strict=True)).values())
