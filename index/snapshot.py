"""One version of a gallery, ready to search: immutable, so that any number of threads may share it.

Shapes: n live photos, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .candidates import FlatCandidates
from .densities import Densities
from .distance import PLAIN, Floats, Measure, squared_distance
from .errors import GalleryCorrupt
from .segments import open_segment
from .store import Row, Store

FIRST_FETCH = 32  # candidate photos fetched before grouping by item


@dataclass(frozen=True)
class Neighbour:
    """An item near a query, by its nearest photo."""

    item_id: str
    photo_id: str
    distance: float
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """The live photos of one version, in the order of `rows`."""

    version: int
    rows: list[Row]
    vectors: NDArray[np.float32]  # (n, d)
    items: NDArray[np.int64]  # (n,) number of each photo's item
    item_count: int
    candidates: FlatCandidates
    segments: dict[int, NDArray[np.float32]]  # the files, mapped
    places: tuple[NDArray[np.int64], NDArray[np.int64]]  # (n,) segment of each photo, and row in it
    _made: dict[str, Floats] = field(default_factory=dict)  # densities by measure

    @classmethod
    def read(cls, store: Store, folder: Path, *, dim: int) -> Snapshot:
        """Read the newest version; GalleryCorrupt also when a merge takes a listed file away meanwhile."""
        with store.transaction("DEFERRED"):
            version, rows, segments = store.version(), store.photos(), store.segments()
        numbers = np.array([row.segment for row in rows], dtype=np.int64)
        places = np.array([row.row for row in rows], dtype=np.int64)
        vectors = np.empty((len(rows), dim), dtype=np.float32)
        placed = np.zeros(len(rows), dtype=bool)
        files = {}
        for segment in segments:
            files[segment.id] = open_segment(folder, segment.name, rows=segment.rows, dim=dim)
            mine = (numbers == segment.id) & (places >= 0) & (places < segment.rows)
            vectors[mine] = files[segment.id][places[mine]]
            placed |= mine
        if not placed.all():
            raise GalleryCorrupt(
                f"{int((~placed).sum())} photos have no vector",
                remedy="Restore the gallery from a copy, or index again",
            )
        names, items = np.unique([row.item_id for row in rows], return_inverse=True)
        candidates = FlatCandidates(vectors)
        return cls(version, rows, vectors, items.astype(np.int64), len(names), candidates, files, (numbers, places))

    def filtered(self, where: Mapping[str, Any]) -> Snapshot:
        """Return the snapshot of the photos whose metadata hold all the given values."""
        kept = []
        for position, row in enumerate(self.rows):
            metadata = row.decoded()
            if all(key in metadata and metadata[key] == value for key, value in where.items()):
                kept.append(position)
        vectors = self.vectors[kept]
        rows = [self.rows[position] for position in kept]
        places = self.places[0][kept], self.places[1][kept]
        return Snapshot(
            self.version,
            rows,
            vectors,
            self.items[kept],
            self.item_count,
            FlatCandidates(vectors),
            self.segments,
            places,
        )

    def densities(self, measure: Measure, known: Densities) -> Floats:
        """Return the density around each photo (n,)."""
        if measure.key not in self._made:
            self._made[measure.key] = (
                np.zeros(len(self.rows)) if measure is PLAIN else known.of(measure, self.segments, *self.places)
            )
        return self._made[measure.key]

    def nearest(self, vector: NDArray[np.float32], k: int, measure: Measure, densities: Floats) -> list[Neighbour]:
        """Return the k items nearest to a unit vector (d,): fetch until they are sure, measure, group."""
        own = measure.densities(vector[None])[0]
        sparsest = densities.min(initial=np.inf)
        fetch = max(FIRST_FETCH, 4 * k)
        while True:
            rows, cosines = self.candidates.search(vector, fetch)
            distances = measure.transform(squared_distance(vector[None], self.vectors[rows]), own, densities[rows])
            order = np.lexsort((rows, distances))  # equal distances in the order of adding
            _, first = np.unique(self.items[rows[order]], return_index=True)
            best = order[np.sort(first)]  # the nearest photo of each item, items in order
            if len(rows) == len(self.rows):
                break
            # a photo that was not fetched has at most the last cosine, give or take float32
            squared = np.maximum(0.0, 2 - 2 * (cosines[-1:].astype(np.float64) + 2 * self.candidates.slack))
            if len(best) >= k and distances[best[k - 1]] < measure.transform(squared, own, sparsest)[0]:
                break
            fetch *= 4
        found = [(self.rows[rows[i]], float(distances[i])) for i in best[:k]]
        return [Neighbour(row.item_id, row.photo_id, distance, row.decoded()) for row, distance in found]
