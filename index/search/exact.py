"""Exact searches: bounds that spare exact distances, and candidates from one pass over all vectors.

Shapes: n queries, m candidates of each, d = embedding size.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from index.ann.faiss_index import Candidates
from index.search.distance import Floats, squared_from

MANY = 100  # queries from which a pass over the stored vectors is faster than a scan of an fp16 index for each query
BLOCK = 16_384  # vectors compared at a time
PAIRS = 512  # pairs of a query and a vector compared at a time; they fit in the CPU cache
NONE = -1  # position of a photo, or number of an item, that does not exist

Rows = NDArray[np.int64]
Vectors = NDArray[np.float32]


def contenders(items: NDArray[np.int32], least: Floats, most: Floats, k: int) -> NDArray[np.bool_]:
    """Return a mask (n, m) of candidates that may be the nearest photo of one of the k nearest items of their query.

    Only these need exact distances: the answers are the same as with exact distances of all candidates.

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
    reach[order] = nearest[np.cumsum(changes) - 1]
    return np.asarray((least <= reach.reshape(queries, width)) & (least < np.inf))


def pair_squares(exact: Floats, read: Callable[[Rows], Vectors], rows: Rows, positions: Rows) -> Floats:
    """Return the squared plain distances (p,) of pairs: the row of a query in `exact`, and the position of a photo.

    `exact` (n, d) is scaled by `exact_unit`, and `read` returns the vectors at some positions.
    """
    if len(exact) == 1 and len(positions) <= PAIRS:
        return squared_from(exact, read(positions))
    squared = np.empty(len(positions))
    for start in range(0, len(positions), PAIRS):
        some = slice(start, start + PAIRS)
        squared[some] = squared_from(exact[rows[some]], read(positions[some]))
    return squared


def first_of_items(
    rows: Rows, items: NDArray[np.integer], positions: Rows, distances: Floats, shape: tuple[int, int]
) -> tuple[Rows, Floats, Rows]:
    """Return the nearest photo of each of the k nearest items of n queries, from pairs (p,) of a query and a photo.

    The answer is positions (n, k) and distances (n, k), with NONE and inf where there are fewer items, and the number
    of items of each query (n,), at most k. Of equal distances, the smaller position is first. `shape` is (n, k).
    """
    queries, k = shape
    order = np.lexsort((positions, distances) if queries == 1 else (positions, distances, rows))
    keys = items[order] + (rows[order] << 32)
    by_key = np.argsort(keys, kind="stable")
    ordered, is_first = keys[by_key], np.ones(len(keys), dtype=bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    order = order[np.sort(by_key[is_first])]  # the first pair of each query and item
    of = rows[order]
    places = np.arange(len(order)) - np.searchsorted(of, np.arange(queries))[of]
    inside = places < k
    order, of, places = order[inside], of[inside], places[inside]
    nearest, apart = np.full(shape, NONE), np.full(shape, np.inf)
    nearest[of, places], apart[of, places] = positions[order], distances[order]
    return nearest, apart, np.bincount(of, minlength=queries)


def sweep(
    vectors: Vectors, count: int, read: Callable[[Rows], Vectors], positions: Rows
) -> tuple[Rows, Vectors, Floats]:
    """Return positions and cosines (n, ≤ count) of the vectors nearest to unit vectors (n, d), and a bound.

    The vectors are in any order. The bound (n,) is the least of the returned cosines, which no other vector exceeds. It
    is -inf if there are no other vectors.

    Parameters
    ----------
    read:
        Returns the vectors at some of the positions. With many queries, it is called in several threads.
    """
    if count >= len(positions):
        cosines = vectors @ read(positions).T
        return np.tile(positions, (len(vectors), 1)), cosines, np.full(len(vectors), -np.inf)

    def compare(block: Rows) -> tuple[Rows, Vectors]:
        if len(vectors) < MANY:
            return np.broadcast_to(block, (len(vectors), len(block))), vectors @ read(block).T
        rows, cosines = Candidates.flat(read(block)).search(vectors, count)
        return block[rows], cosines

    blocks = [positions[start : start + BLOCK] for start in range(0, len(positions), BLOCK)]
    threads = 1 if len(vectors) < MANY else os.cpu_count() or 1
    found, best = np.zeros((len(vectors), 0), np.int64), np.zeros((len(vectors), 0), np.float32)
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(blocks), threads):
            some = blocks[start : start + threads]
            compared = map(compare, some) if threads == 1 else pool.map(compare, some)
            for places, cosines in compared:
                found, best = _best(count, (found, places), (best, cosines))
    return found, best, best.min(axis=1).astype(np.float64)


def _best(count: int, positions: tuple[Rows, Rows], cosines: tuple[Vectors, Vectors]) -> tuple[Rows, Vectors]:
    """Return the `count` candidates with the greatest cosines from two sets of them."""
    found, best = np.concatenate(positions, axis=1), np.concatenate(cosines, axis=1)
    if best.shape[1] <= count:
        return found, best
    chosen = np.argpartition(-best, count - 1, axis=1)[:, :count]
    return np.take_along_axis(found, chosen, axis=1), np.take_along_axis(best, chosen, axis=1)
