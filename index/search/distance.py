"""The plain distance between photos and the match rule; each is defined here and nowhere else.

Shapes: n rows, d = embedding size.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


def plain_distance(queries: ArrayLike, vectors: ArrayLike) -> Floats:
    """Return sqrt(2 - 2 cos) in [0, 2] for each row, in float64.

    The length of the difference of two unit vectors is the same number as sqrt(2 - 2 cos) without its
    cancellation near zero: identical rows are exactly 0 apart. Each row is computed on its own, so that the
    size of a batch cannot change an answer.

    Parameters
    ----------
    queries, vectors:
        Arrays (n, d), or shapes that broadcast to it. Rows are first scaled to length one in float64.
    """
    return np.asarray(np.sqrt(squared_from(exact_unit(queries), vectors)))


def squared_from(exact: Floats, vectors: ArrayLike) -> Floats:
    """Return the square of the plain distance, in [0, 4], for queries scaled by `exact_unit`."""
    difference = exact - exact_unit(vectors)
    return np.asarray(np.minimum(np.vecdot(difference, difference), 4.0))


def accepts(distance: ArrayLike, threshold: float) -> NDArray[np.bool_]:
    """Return whether `distance <= threshold`, elementwise: a distance equal to it is a match, NaN never is."""
    return np.less_equal(np.asarray(distance, dtype=np.float64), threshold)


def exact_unit(rows: ArrayLike) -> Floats:
    """Return rows scaled to length one in float64."""
    exact = np.array(rows, dtype=np.float64, order="C")
    exact /= np.sqrt(np.vecdot(exact, exact))[..., None]
    return exact


def rounding(dim: int) -> float:
    """Return the error bound of a float32 cosine: d * 2**-24 for unit vectors, which have length 1 within 1e-6."""
    return 1e-5 + dim * 2.0**-24
