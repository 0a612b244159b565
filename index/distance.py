"""The one definition of closeness, and the one place where a match is decided.

Shapes: n rows, d = embedding size.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def plain_distance(queries: ArrayLike, vectors: ArrayLike) -> Floats:
    """Return sqrt(2 - 2 cos) in [0, 2], row by row, in float64.

    Parameters
    ----------
    queries, vectors:
        (n, d) each, or shapes that broadcast to it. Rows are scaled to length one in float64 first.

    The length of the difference of two unit vectors is the same number as sqrt(2 - 2 cos) without its
    cancellation near zero: identical rows are exactly 0 apart. Each row is computed on its own, so that the
    size of a batch cannot change an answer.
    """
    difference = _unit(queries) - _unit(vectors)
    return np.asarray(np.minimum(np.sqrt((difference * difference).sum(axis=-1)), 2.0))


def accepts(distance: ArrayLike, threshold: float) -> NDArray[np.bool_]:
    """Return where `distance <= threshold`: a distance exactly at it is a match, NaN never is."""
    return np.less_equal(np.asarray(distance, dtype=np.float64), threshold)


def _unit(rows: ArrayLike) -> Floats:
    exact = np.ascontiguousarray(rows, dtype=np.float64)
    return np.asarray(exact / np.sqrt((exact * exact).sum(axis=-1, keepdims=True)))
