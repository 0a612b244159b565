"""The distance between photos and the match rule; each is defined here and nowhere else.

Shapes: n rows, d = embedding size.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

SHORTEST = 1e-6  # length of a mean vector that has a direction


class DistanceForm(Protocol):
    """Distance function: monotone in the cosine, given the densities of both vectors.

    A density is one number per vector, computed from the vector alone; larger means denser.
    """

    @property
    def key(self) -> str:
        """Return a key that identifies this form."""

    def densities(self, vectors: NDArray[np.float32]) -> Floats:
        """Return the density around each of the unit vectors (n, d)."""

    def transform(self, squared: Floats, query: ArrayLike, photo: ArrayLike) -> Floats:
        """Return distances from squared plain distances and the densities of both sides, all of one shape.

        The result increases with the squared distance, is 0 at 0, and never decreases as a density grows.
        """


class PlainDistance:
    """The plain distance, independent of density."""

    key = "plain"

    def densities(self, vectors: NDArray[np.float32]) -> Floats:
        """Return zeros."""
        return np.zeros(len(vectors))

    def transform(self, squared: Floats, query: ArrayLike, photo: ArrayLike) -> Floats:  # noqa: ARG002
        """Return the square root."""
        return np.sqrt(squared)


PLAIN = PlainDistance()


class Queries(NamedTuple):
    """Queries that are searched together."""

    vectors: NDArray[np.float32]  # (n, d) of length one
    exact: Floats  # (n, d) the same, scaled by `exact_unit`
    densities: Floats  # (n,)

    @classmethod
    def of(cls, vectors: NDArray[np.float32], distance_form: DistanceForm) -> Queries:
        """Return unit vectors (n, d) as queries."""
        return cls(vectors, exact_unit(vectors), distance_form.densities(vectors))

    def at(self, places: list[int]) -> Queries:
        """Return some of the queries."""
        return Queries(self.vectors[places], self.exact[places], self.densities[places])


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
    return np.asarray(np.sqrt(squared_distance(queries, vectors)))


def squared_distance(queries: ArrayLike, vectors: ArrayLike) -> Floats:
    """Return the square of the plain distance, in [0, 4], computed in the same way."""
    return squared_from(exact_unit(queries), vectors)


def squared_from(exact: Floats, vectors: ArrayLike) -> Floats:
    """Return the same as `squared_distance`, for queries scaled by `exact_unit`."""
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


def mean_vectors(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the mean of each group of unit vectors (g, m, d), scaled to length one (g, d).

    The order of the photos makes no difference. Where vectors cancel out, the smallest one stands for the group.
    """
    if vectors.shape[1] == 1:
        return vectors[:, 0]
    exact = vectors.astype(np.float64)
    total = np.sort(exact, axis=1).sum(axis=1)
    lengths = np.linalg.norm(total, axis=1, keepdims=True)
    first = np.array([min(group.tolist()) for group in exact]) if (lengths < SHORTEST).any() else total
    scaled = np.where(lengths < SHORTEST, first, total / np.maximum(lengths, SHORTEST))
    return np.asarray(scaled, dtype=np.float32)
