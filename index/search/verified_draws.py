"""Draws with a verified distance form.

The own item and the duplicates of a query are left out before its shortlist is made. The distance to the own item is
that of a search in which only the query's own photo is left out: photos of the own item are verified if they are on
the shortlist of that search.
Shapes: n draws.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from .leave_one_out import NOBODY, Measured, Queries
from .verified import photos_of
from .verified_search import Query, Shortlist, VerifiedSearch, most_votes

FIELDS = [("distances", "f8"), ("nearest", "i8"), ("duplicates", "i8"), ("own", "f8"), ("own_nearest", "i8")]
Near = Sequence[tuple[int, float]]  # position and distance of the nearest items, in order


@dataclass(frozen=True)
class VerifiedDraws:
    """Makes draws from one snapshot with one verified distance form."""

    search: VerifiedSearch
    is_duplicate: Callable[[int, int], bool]  # whether the photo at the second position is a copy of the first one's

    def measured(self, queries: Queries) -> Measured:
        """Return the results of queries."""
        own = self.search.form.densities(queries.vectors).tolist()
        others = self._others(queries)

        def drawn(row: int) -> tuple[float, int, int, float, int]:
            position, number = int(queries.positions[row]), int(queries.numbers[row])
            near, same = others[row]
            left_out = frozenset([number, *self.search.snapshot.items[same].tolist()])
            features = self._features(queries, row)
            asked = tuple(map(self.search.form.verifier.asked, features))
            positions = () if position == NOBODY else (position,)
            query = Query(queries.vectors[row], own[row], features, asked, positions, left_out)
            return self._draw(query, number, near, same)

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            table = np.array(list(pool.map(drawn, range(len(own)))), dtype=np.dtype(FIELDS))
        return Measured(*(table[name] for name, _ in FIELDS))

    def _features(self, queries: Queries, row: int) -> tuple[bytes, ...]:
        if queries.positions[row] == NOBODY:
            return photos_of(queries.features[row])
        return tuple(self.search.snapshot.features(queries.positions[[row]]))

    def _others(self, queries: Queries) -> list[tuple[Near, list[int]]]:
        """Return the nearest other items of each query, and the positions of its duplicates.

        The items are as many as are verified. A duplicate is the nearest photo of an item with a copy of the query.
        """
        snapshot, items = self.search.snapshot, self.search.items
        found: list[tuple[Near, list[int]]] = [([], [])] * len(queries.vectors)
        waiting, count = np.arange(len(found)), items + 1
        while len(waiting):
            again = []
            answers = snapshot.nearest(queries.vectors[waiting], count, self.search.form, self.search.densities)
            for row, best in zip(waiting.tolist(), answers, strict=True):
                others = [near for near in best if snapshot.items[near[0]] != queries.numbers[row]]
                same = [p for p, _ in others if self.is_duplicate(int(queries.positions[row]), p)]
                rest = [near for near in others if near[0] not in same]
                found[row] = rest[:items], same
                if len(rest) < items and len(best) == count:
                    again.append(row)
            waiting, count = np.array(again, dtype=np.int64), 4 * count
        return found

    def _draw(self, query: Query, number: int, near: Near, same: Sequence[int]) -> tuple[float, int, int, float, int]:
        """Return the fields of `Measured` of one draw."""
        seqs, found = self.search.snapshot.seqs, self.search.shortlist(query, near)
        best = self.search.by_item(found, near, 1)
        own, own_position = self._own(query, number, near, found)
        distance, nearest = (best[0][1], int(seqs[best[0][0]])) if best else (np.inf, NOBODY)
        duplicate = int(seqs[same[0]]) if same else NOBODY
        return distance, nearest, duplicate, own, NOBODY if own_position == NOBODY else int(seqs[own_position])

    def _own(self, query: Query, number: int, near: Near, found: Shortlist) -> tuple[float, int]:
        """Return distance and position of the nearest photo of the own item."""
        search = self.search
        positions = np.sort(search.photos_of(np.array([number], dtype=np.int32)))
        positions = positions[~np.isin(positions, query.own)]
        if not len(positions):
            return np.inf, NOBODY
        distances = search.distances(query, positions)
        first = int(np.lexsort((positions, distances))[0])
        last = (near[-1][1], near[-1][0]) if len(near) == search.items else (np.inf, NOBODY)
        nearest = positions[:0]
        if (distances[first], positions[first]) < last:
            nearest = search.nearest_photos(positions, distances, np.array([number]))
        chosen = []
        for every, (others, votes) in zip(found.scores, found.votes, strict=True):
            scores = every[positions]
            voting, all_votes = np.append(others, positions[scores > 0]), np.append(votes, scores[scores > 0])
            voted, _ = most_votes(voting, all_votes, search.form.verifier.voted)
            chosen.append(np.union1d(nearest, np.intersect1d(voted, positions)))
        verified, inliers = search.inliers(query, chosen)
        fused = search.fused(positions, distances, verified, inliers)
        best = int(np.lexsort((positions, fused))[0])
        return float(fused[best]), int(positions[best])
