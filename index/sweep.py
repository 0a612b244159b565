"""Candidates for queries from one pass over all vectors.

Shapes: n queries, d = embedding size.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from index.ann.candidates import Candidates

MANY = 100  # queries from which a pass over the stored vectors is faster than a scan of an fp16 index for each query
BLOCK = 16_384  # vectors compared at a time

Rows = NDArray[np.int64]
Vectors = NDArray[np.float32]
Floats = NDArray[np.float64]


def sweep(
    vectors: Vectors, count: int, read: Callable[[Rows], Vectors], positions: Rows
) -> tuple[Rows, Vectors, Floats]:
    """Return positions and cosines (n, ≤ count) of the vectors nearest to unit vectors (n, d), and a bound.

    They are in any order. The bound (n,) is the least of the cosines. No other vector has a greater one. It is -inf if
    there is no other.

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
