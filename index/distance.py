"""The one definition of closeness, and the one place where a match is decided.

Shapes: n rows, d = embedding size.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


class Measure(Protocol):
    """How far photos are from a query: monotone in their cosine, given how dense it is around either.

    A density is one number a vector, made from the vector alone; larger is denser.
    """

    @property
    def key(self) -> str:
        """What tells this measure from every other."""

    def densities(self, vectors: NDArray[np.float32]) -> Floats:
        """Return the density around each of the unit vectors (n, d)."""

    def transform(self, squared: Floats, query: ArrayLike, photo: ArrayLike) -> Floats:
        """Return distances for squared plain distances and the densities of both sides, all of one shape.

        It grows with the squared distance, is 0 where that is, and never falls as a density grows.
        """


class PlainMeasure:
    """The plain distance, the same everywhere."""

    key = "plain"

    def densities(self, vectors: NDArray[np.float32]) -> Floats:
        """Return zeros."""
        return np.zeros(len(vectors))

    def transform(self, squared: Floats, query: ArrayLike, photo: ArrayLike) -> Floats:  # noqa: ARG002
        """Return the square root."""
        return np.sqrt(squared)


PLAIN = PlainMeasure()


def plain_distance(queries: ArrayLike, vectors: ArrayLike) -> Floats:
    """Return sqrt(2 - 2 cos) in [0, 2], row by row, in float64.

    The length of the difference of two unit vectors is the same number as sqrt(2 - 2 cos) without its
    cancellation near zero: identical rows are exactly 0 apart. Each row is computed on its own, so that the
    size of a batch cannot change an answer.

    Parameters
    ----------
    queries, vectors:
        (n, d) each, or shapes that broadcast to it. Rows are scaled to length one in float64 first.
    """
    return np.asarray(np.sqrt(squared_distance(queries, vectors)))


def squared_distance(queries: ArrayLike, vectors: ArrayLike) -> Floats:
    """Return the square of the plain distance, in [0, 4], in the same way."""
    difference = _unit(queries) - _unit(vectors)
    return np.asarray(np.minimum(np.vecdot(difference, difference), 4.0))


def accepts(distance: ArrayLike, threshold: float) -> NDArray[np.bool_]:
    """Return where `distance <= threshold`: a distance exactly at it is a match, NaN never is."""
    return np.less_equal(np.asarray(distance, dtype=np.float64), threshold)


def _unit(rows: ArrayLike) -> Floats:
    exact = np.array(rows, dtype=np.float64, order="C")
    exact /= np.sqrt(np.vecdot(exact, exact))[..., None]
    return exact
