"""Searches of an evaluation split by item: the items that a query returns, and their nearest photos.

The distance to an item is that to its nearest photo. Distances come from float64 products; displayed ones are exact.
Shapes: n queries, m gallery photos, d = embedding size, T items of the gallery.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from index.search.distance import PLAIN, DistanceForm, accepts, squared_distance
from retrieval.metrics.item_distances import ItemDistances
from training.evaluation.evaluate import EvaluationSplit

ANSWERS = 10  # items that a search returns at most

Floats = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(frozen=True)
class Neighbour:
    """An item in a search: its nearest photo, the distance to it, and whether it is a match."""

    item: int  # label
    photo: int  # position
    distance: float
    accepted: bool


@dataclass(frozen=True)
class OtherAnswers:
    """Items other than its own that each query returns, at most ANSWERS per query and a in total."""

    rows: Places  # (a,) rows of the queries
    items: Places  # (a,) labels
    ranks: Places  # (a,) among the other items, from 0
    distances: Floats  # (a,)
    nearest: Places  # (n,) label of the nearest other item, accepted or not; -1 where there is none


class ItemSearch:
    """Searches of an evaluation split, with each item at its nearest photo."""

    def __init__(
        self,
        split: EvaluationSplit,
        vectors: NDArray[np.float32],
        labels: Places,
        *,
        threshold: float,
        distance_form: DistanceForm = PLAIN,
    ) -> None:
        self.split, self.labels, self.threshold = split, labels, threshold
        self._vectors, self._distance_form = vectors, distance_form
        self._side = ItemDistances(
            _unit(vectors[split.gallery]),
            labels[split.gallery],
            densities=distance_form.densities(vectors[split.gallery]),
            ids=split.gallery,
            distance_form=distance_form,
        )
        self.items = self._side.items

    def blocks(self, rows: Places) -> Iterator[tuple[Places, Floats]]:
        """Yield blocks of rows (b,) and their queries' distances to the items (b, T); no photo matches itself."""
        start = 0
        for block, distances in self.from_photos(self.split.queries[rows]):
            yield rows[start : start + len(block)], distances
            start += len(block)

    def from_photos(
        self, photos: Places, *, vectors: NDArray[np.float32] | None = None
    ) -> Iterator[tuple[Places, Floats]]:
        """Yield blocks of photos (b,) and their distances to the items (b, T); no photo matches itself.

        With `vectors` (n, d), these stand for the photos, as those of other crops do.
        """
        vectors = self._vectors[photos] if vectors is None else vectors
        densities = self._distance_form.densities(vectors)
        for block in self._side.blocks(_unit(vectors), self.labels[photos], densities=densities, ids=photos):
            yield photos[block.rows], self._side.to_items(self._side.distances(block.squared, block.densities))

    def other_answers(self) -> OtherAnswers:
        """Return the other items that each query returns."""
        count = min(ANSWERS, len(self.items))
        answers: list[tuple[Places, Places, Places, Floats]] = []
        nearest = np.full(len(self.split.queries), -1, dtype=np.int64)
        for rows, item_distances in self.blocks(np.arange(len(self.split.queries))):
            item_distances[self.labels[self.split.queries[rows]][:, None] == self.items[None]] = np.inf
            order = np.argsort(item_distances, axis=1, kind="stable")[:, :count]
            ordered = np.take_along_axis(item_distances, order, axis=1)
            has_other = np.isfinite(ordered[:, 0])
            nearest[rows[has_other]] = self.items[order[has_other, 0]]
            row, rank = np.nonzero(accepts(ordered, self.threshold))
            answers.append((rows[row], self.items[order[row, rank]], rank, ordered[row, rank]))
        rows, items, ranks = (np.concatenate([block[i] for block in answers]).astype(np.int64) for i in range(3))
        return OtherAnswers(rows, items, ranks, np.concatenate([block[3] for block in answers]), nearest)

    def nearest_photo(self, row: int, item: int) -> Neighbour | None:
        """Return an item's nearest photo to a query, with the exact distance, or None without another photo."""
        query = self.split.queries[row]
        index = int(np.searchsorted(self.items, item))
        if index == len(self.items) or self.items[index] != item:
            return None
        photos = self.split.gallery[self._side.order[self._side.photos(index)]]
        photos = photos[photos != query]
        if not len(photos):
            return None
        query_vector, photo_vectors = self._vectors[[query]], self._vectors[photos]
        densities = self._distance_form.densities(query_vector), self._distance_form.densities(photo_vectors)
        distances = self._distance_form.transform(squared_distance(query_vector, photo_vectors), *densities)
        best = int(distances.argmin())
        distance = float(distances[best])
        return Neighbour(int(item), int(photos[best]), distance, bool(accepts(distance, self.threshold)))


def _unit(vectors: NDArray[np.float32]) -> Floats:
    exact = vectors.astype(np.float64)
    return np.asarray(exact / np.maximum(np.linalg.norm(exact, axis=1, keepdims=True), 1e-30))
