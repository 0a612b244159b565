"""Searches of a scene, item by item: which items a query returns, and by which of their photos.

An item is as far as its nearest photo. Distances come from float64 products; those that are shown are exact.
Shapes: n queries, m gallery photos, d = embedding size, T items of the gallery.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from index.distance import PLAIN, Measure, accepts, squared_distance
from training.evaluation.evaluate import Scene

ANSWERS = 10  # items that a search returns at most
BLOCK = 2**22  # distances held at a time

Floats = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(frozen=True)
class Neighbour:
    """An item as a search sees it: its nearest photo, how far that is, and whether that is a match."""

    item: int  # label
    photo: int  # position
    distance: float
    accepted: bool


@dataclass(frozen=True)
class OtherAnswers:
    """The items other than its own that each query returns, the ANSWERS nearest at most: a answers in all."""

    rows: Places  # (a,) of the query
    items: Places  # (a,) labels
    ranks: Places  # (a,) among the other items, from 0
    distances: Floats  # (a,)
    nearest: Places  # (n,) label of the nearest other item, accepted or not; -1 where there is none


class ItemSearch:
    """The searches of a scene, an item at its nearest photo."""

    def __init__(
        self, scene: Scene, vectors: NDArray[np.float32], labels: Places, *, threshold: float, measure: Measure = PLAIN
    ) -> None:
        order = np.argsort(labels[scene.gallery], kind="stable")
        self.scene, self.labels, self.threshold = scene, labels, threshold
        self._photos = scene.gallery[order]  # items side by side
        self.items, self._starts = np.unique(labels[self._photos], return_index=True)
        self._vectors, self._measure = vectors, measure
        self._gallery = _unit(vectors[self._photos])
        self._densities = measure.densities(vectors[self._photos])

    def blocks(self, rows: Places) -> Iterator[tuple[Places, Floats]]:
        """Yield some rows (b,) and the distances of their queries to the gallery's photos (b, m), inf to themselves."""
        step = max(1, BLOCK // len(self._photos))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            asked = self.scene.queries[part]
            squared = np.maximum(2 - 2 * (_unit(self._vectors[asked]) @ self._gallery.T), 0)
            densities = self._measure.densities(self._vectors[asked])
            distances = self._measure.transform(squared, densities[:, None], self._densities[None])
            distances[asked[:, None] == self._photos[None]] = np.inf
            yield part, distances

    def by_item(self, distances: Floats) -> Floats:
        """Return how far each item is (b, T), of distances to photos (b, m)."""
        return np.asarray(np.minimum.reduceat(distances, self._starts, axis=1))

    def other_answers(self) -> OtherAnswers:
        """Return which other items each query returns."""
        kept = min(ANSWERS, len(self.items))
        found: list[tuple[Places, Places, Places, Floats]] = []
        nearest = np.full(len(self.scene.queries), -1, dtype=np.int64)
        for rows, distances in self.blocks(np.arange(len(self.scene.queries))):
            far = self.by_item(distances)
            far[self.labels[self.scene.queries[rows]][:, None] == self.items[None]] = np.inf
            order = np.argsort(far, axis=1, kind="stable")[:, :kept]
            ordered = np.take_along_axis(far, order, axis=1)
            some = np.isfinite(ordered[:, 0])
            nearest[rows[some]] = self.items[order[some, 0]]
            row, rank = np.nonzero(accepts(ordered, self.threshold))
            found.append((rows[row], self.items[order[row, rank]], rank, ordered[row, rank]))
        rows, items, ranks = (np.concatenate([part[i] for part in found]).astype(np.int64) for i in range(3))
        return OtherAnswers(rows, items, ranks, np.concatenate([part[3] for part in found]), nearest)

    def nearest_photo(self, row: int, item: int) -> Neighbour | None:
        """Return an item's nearest photo to a query, measured exactly; None where the gallery holds no other one."""
        query = self.scene.queries[row]
        place = int(np.searchsorted(self.items, item))
        if place == len(self.items) or self.items[place] != item:
            return None
        photos = self._photos[self._starts[place] : (*self._starts, None)[place + 1]]
        photos = photos[photos != query]
        if not len(photos):
            return None
        asked, kept = self._vectors[[query]], self._vectors[photos]
        densities = self._measure.densities(asked), self._measure.densities(kept)
        distances = self._measure.transform(squared_distance(asked, kept), *densities)
        best = int(distances.argmin())
        distance = float(distances[best])
        return Neighbour(int(item), int(photos[best]), distance, bool(accepts(distance, self.threshold)))


def _unit(vectors: NDArray[np.float32]) -> Floats:
    exact = vectors.astype(np.float64)
    return np.asarray(exact / np.maximum(np.linalg.norm(exact, axis=1, keepdims=True), 1e-30))
