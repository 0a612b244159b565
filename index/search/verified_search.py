"""Verified searches and draws: the shortlist of a query, its inliers, and the items by their verified distance.

The shortlist holds the nearest photos of the nearest items by the base distance, and the photos with the most votes.
It does not depend on the number of requested items. The distance of a photo on the shortlist is lowered by its inliers,
other photos keep their base distance, and the distance of an item is that of its nearest photo. Features are read for
the query and its shortlist only.
Shapes: n queries, d = embedding size, m photos, v verified photos.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from index.snapshot import Snapshot

from .distance import Floats, Rows, squared_distance
from .filters import Filter
from .leave_one_out import NOBODY, Measured, Queries
from .verified import VerifiedDistance
from .votes import InvertedLists, most_votes

FIELDS = [("distances", "f8"), ("nearest", "i8"), ("duplicates", "i8"), ("own", "f8"), ("own_nearest", "i8")]

Near = Sequence[tuple[int, float]]  # position and distance of the nearest items by the base distance, in order
IsDuplicate = Callable[[int, int], bool]  # whether the photo at the second position is a copy of the first one's


@dataclass(frozen=True)
class Query:
    """The photo of one search."""

    vector: NDArray[np.float32]  # (d,) of length one
    density: float
    features: bytes
    scores: Floats  # votes for each photo of the snapshot


@dataclass(frozen=True)
class VerifiedSearch:
    """Searches of one snapshot with one verified distance form."""

    snapshot: Snapshot
    form: VerifiedDistance
    densities: tuple[Floats, float]  # density around each photo of the snapshot, and the minimum
    lists: Sequence[InvertedLists] = field(repr=False)  # of each segment

    def nearest(
        self,
        vectors: NDArray[np.float32],
        features: Sequence[bytes],
        k: int,
        *,
        only: Filter | None = None,
    ) -> list[list[tuple[int, float]]]:
        """Return position and distance of the k nearest items, by their nearest photo, for unit vectors (n, d)."""
        near = self.snapshot.nearest(vectors, max(k, self.items), self.form, self.densities, only=only)
        passing = self.snapshot.live if only is None else only.mask
        own = self.form.densities(vectors).tolist()
        return [
            self._by_item(self._query(vector, density, some), best, passing, k)
            for vector, density, some, best in zip(vectors, own, features, near, strict=True)
        ]

    def measured(self, queries: Queries, is_duplicate: IsDuplicate) -> Measured:
        """Return the results of draws: searches in which the own item and duplicates of the query are left out.

        The distance to the own item is that of a search in which only the query's own photo is left out: photos of the
        own item are verified if they are on the shortlist of that search.
        """
        own = self.form.densities(queries.vectors).tolist()
        others = self._others(queries, is_duplicate)

        def drawn(row: int) -> tuple[float, int, int, float, int]:
            position, number = int(queries.positions[row]), int(queries.numbers[row])
            stored = position != NOBODY
            features = self.snapshot.features(queries.positions[[row]])[0] if stored else queries.features[row]
            query = self._query(queries.vectors[row], own[row], features)
            return self._draw(query, position, number, *others[row])

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            table = np.array(list(pool.map(drawn, range(len(own)))), dtype=np.dtype(FIELDS))
        return Measured(*(table[name] for name, _ in FIELDS))

    @property
    def items(self) -> int:
        """The number of nearest items that are verified."""
        return max(1, self.form.verifier.items)

    def _query(self, vector: NDArray[np.float32], density: float, features: bytes) -> Query:
        asked, voting = self.form.verifier.asked(features), self.form.verifier.voting
        scores = self.snapshot.by_position([each.scores(asked, voting) for each in self.lists])
        return Query(vector, density, features, scores)

    def _by_item(self, query: Query, near: Near, passing: NDArray[np.bool_], k: int) -> list[tuple[int, float]]:
        """Return position and distance of the k nearest items among the passing photos, by their nearest photo."""
        first = self.snapshot.items[[position for position, _ in near[: self.items]]]
        voted = self._voted(query, passing)
        positions = np.sort(self._photos_of(np.union1d(first, self.snapshot.items[voted])))
        positions = positions[passing[positions]]
        distances = self._base(query, positions)
        listed = np.union1d(self._nearest_photos(positions, distances, first), voted)
        distances = self._lowered(query, positions, distances, listed)
        positions = np.concatenate([positions, np.array([p for p, _ in near], dtype=np.int64)])
        distances = np.concatenate([distances, np.array([distance for _, distance in near])])
        order = np.lexsort((positions, distances))
        best = order[np.sort(np.unique(self.snapshot.items[positions[order]], return_index=True)[1])[:k]]
        return list(zip(positions[best].tolist(), distances[best].tolist(), strict=True))

    def _others(self, queries: Queries, is_duplicate: IsDuplicate) -> list[tuple[Near, list[int]]]:
        """Return the nearest other items of each query, and the positions of its duplicates.

        The items are as many as are verified. A duplicate is the nearest photo of an item with a copy of the query.
        """
        found: list[tuple[Near, list[int]]] = [([], [])] * len(queries.vectors)
        waiting, count = np.arange(len(found)), self.items + 1
        while len(waiting):
            again = []
            answers = self.snapshot.nearest(queries.vectors[waiting], count, self.form, self.densities)
            for row, best in zip(waiting.tolist(), answers, strict=True):
                others = [near for near in best if self.snapshot.items[near[0]] != queries.numbers[row]]
                same = [p for p, _ in others if is_duplicate(int(queries.positions[row]), p)]
                rest = [near for near in others if near[0] not in same]
                found[row] = rest[: self.items], same
                if len(rest) < self.items and len(best) == count:
                    again.append(row)
            waiting, count = np.array(again, dtype=np.int64), 4 * count
        return found

    def _draw(
        self, query: Query, position: int, number: int, near: Near, same: Sequence[int]
    ) -> tuple[float, int, int, float, int]:
        """Return the fields of `Measured` of one draw."""
        seqs, passing = self.snapshot.seqs, self.snapshot.live.copy()
        mine = np.sort(self._photos_of(np.array([number], dtype=np.int32)))
        passing[self._photos_of(np.unique(self.snapshot.items[same]))] = False  # all photos of items with a duplicate
        with_own = passing.copy()
        passing[mine] = False
        if position != NOBODY:
            with_own[position] = False
        best = self._by_item(query, near, passing, 1)
        distance, nearest = (best[0][1], int(seqs[best[0][0]])) if best else (np.inf, NOBODY)
        own, own_position = self._own(query, near, mine[with_own[mine]], with_own)
        duplicate = int(seqs[same[0]]) if same else NOBODY
        return distance, nearest, duplicate, own, NOBODY if own_position == NOBODY else int(seqs[own_position])

    def _own(self, query: Query, near: Near, mine: Rows, passing: NDArray[np.bool_]) -> tuple[float, int]:
        """Return distance and position of the nearest of the own item's photos, of which those listed are verified."""
        if not len(mine):
            return np.inf, NOBODY
        distances = self._base(query, mine)
        first = int(np.lexsort((mine, distances))[0])
        last = (near[-1][1], near[-1][0]) if len(near) == self.items else (np.inf, NOBODY)
        listed = np.intersect1d(self._voted(query, passing), mine)
        if (distances[first], mine[first]) < last:  # the own item is one of the nearest
            listed = np.union1d(listed, self._nearest_photos(mine, distances, self.snapshot.items[mine[:1]]))
        fused = self._lowered(query, mine, distances, listed)
        best = int(np.lexsort((mine, fused))[0])
        return float(fused[best]), int(mine[best])

    def _voted(self, query: Query, passing: NDArray[np.bool_]) -> Rows:
        """Return the passing photos with the most votes."""
        positions = np.flatnonzero((query.scores > 0) & passing)
        return most_votes(positions, query.scores[positions], self.form.verifier.voted)

    def _base(self, query: Query, positions: Rows) -> Floats:
        """Return the base distances of the photos at some positions."""
        squared = squared_distance(query.vector[None], self.snapshot.vectors(positions))
        return self.form.transform(squared, np.full(len(positions), query.density), self.densities[0][positions])

    def _lowered(self, query: Query, positions: Rows, distances: Floats, listed: Rows) -> Floats:
        """Return the distances (m,) of photos at some positions, of which those listed are lowered by their inliers."""
        if not len(listed):
            return distances
        places, lowered = np.searchsorted(positions, listed), distances.copy()
        inliers = self.form.verifier.inliers(query.features, self.snapshot.features(listed))
        fused = self.form.verifier.fused(distances[places], inliers)
        lowered[places] = np.minimum(fused, distances[places])
        return lowered

    def _nearest_photos(self, positions: Rows, distances: Floats, items: NDArray[np.int32]) -> Rows:
        """Return the nearest photos of each of some items, as many as are verified."""
        numbers = self.snapshot.items[positions]
        order = np.lexsort((positions, distances, numbers))
        ordered = numbers[order]
        turn = np.arange(len(order)) - np.searchsorted(ordered, ordered)
        return positions[order[(turn < self.form.verifier.photos) & np.isin(ordered, items)]]

    def _photos_of(self, items: NDArray[np.int32]) -> Rows:
        """Return the positions of the live photos of some items."""
        order, ordered = self._ordered
        starts, stops = (np.searchsorted(ordered, items, side=side).tolist() for side in ("left", "right"))
        return np.concatenate([order[:0], *(order[start:stop] for start, stop in zip(starts, stops, strict=True))])

    @cached_property
    def _ordered(self) -> tuple[Rows, NDArray[np.int32]]:
        """The live positions ordered by item, and their items."""
        positions = np.flatnonzero(self.snapshot.live)
        order = positions[np.argsort(self.snapshot.items[positions], kind="stable")]
        return order, self.snapshot.items[order]
