"""Candidates that may be the nearest photo of one of the nearest items, by bounds of their distances.

Only these need exact distances: the answers are the same as with exact distances of all candidates.
Shapes: n queries, m candidates of each.
"""

from __future__ import annotations

from itertools import pairwise

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
    firsts = np.flatnonzero(np.diff(ordered, prepend=-1))  # one for each item of each query
    nearest = np.minimum.reduceat(most.ravel()[order], firsts)
    starts = np.searchsorted(ordered[firsts], np.arange(queries + 1, dtype=np.int64) << 32).tolist()
    for start, stop in pairwise(starts):
        if stop - start > k:
            some = nearest[start:stop]
            np.minimum(some, np.partition(some, k - 1)[k - 1], out=some)  # the k-th item is at most this far
    reach = np.empty(queries * width)
    reach[order] = np.repeat(nearest, np.diff(firsts, append=len(order)))
    return np.asarray((least <= reach.reshape(queries, width)) & (least < np.inf))
