"""Distances from queries to the photos and items of a gallery, in blocks of queries to bound memory.

The distance to an item is that to its nearest photo.
Shapes: n queries, b queries per block, m gallery photos, T items, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from index.search.distance import PLAIN, DistanceForm, Floats

BLOCK = 2**22  # distances in memory at a time

Vectors = NDArray[np.floating]


@dataclass(frozen=True)
class QueryBlock:
    """Some of the queries and their squared plain distances to the gallery, with the error of the products."""

    rows: slice
    queries: Vectors  # (b, d)
    densities: Floats  # (b,)
    own: NDArray[np.bool_]  # (b, m) photos of the query's own item
    squared: Floats  # (b, m), inf for the query itself


class ItemDistances:
    """A gallery sorted by item, for comparing queries with all of its photos.

    Products are computed in the precision of the vectors. `densities` are those around the photos.
    """

    def __init__(
        self,
        vectors: Vectors,
        labels: ArrayLike,
        *,
        densities: Floats,
        ids: ArrayLike | None = None,
        distance_form: DistanceForm = PLAIN,
    ) -> None:
        labels = np.asarray(labels)
        self.order = np.argsort(labels, kind="stable")  # photos of an item are adjacent
        self.labels = labels[self.order]
        self.items, self.starts = np.unique(self.labels, return_index=True)
        self.vectors, self.densities = vectors[self.order], densities[self.order]
        self.ids = None if ids is None else np.asarray(ids)[self.order]
        self.distance_form = distance_form

    def blocks(
        self, queries: Vectors, labels: ArrayLike, *, densities: Floats, ids: ArrayLike | None = None
    ) -> Iterator[QueryBlock]:
        """Yield queries (n, d) with labels, densities and ids (n,) in blocks; no photo is compared with itself."""
        labels, ids = np.asarray(labels), None if ids is None else np.asarray(ids)
        count = max(1, BLOCK // len(self.labels))
        for start in range(0, len(labels), count):
            rows = slice(start, start + count)
            squared = np.maximum(2 - 2 * (queries[rows] @ self.vectors.T).astype(np.float64), 0)
            if ids is not None and self.ids is not None:
                squared[ids[rows, None] == self.ids[None]] = np.inf
            yield QueryBlock(rows, queries[rows], densities[rows], labels[rows, None] == self.labels[None], squared)

    def distances(self, squared: Floats, densities: Floats) -> Floats:
        """Return distances (b, m) from squared plain distances and the densities of the queries (b,)."""
        return self.distance_form.transform(squared, densities[:, None], self.densities[None])

    def photos(self, item: int) -> slice:
        """Return the positions in `order` of an item, given by its place in `items`."""
        return slice(int(self.starts[item]), (*self.starts.tolist(), None)[item + 1])
