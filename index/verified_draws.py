"""Draws with a verified distance form, and which of them a change of photos may affect.

The own item and the duplicates of a query are left out before its shortlist is made. The distance to the own item is
that of a search in which only the query's own photo is left out: photos of the own item are verified if they are on the
shortlist of that search.

A draw is repeated if a photo that it depends on was removed, if an added photo belongs to the item of such a photo or
to the own item, or if an added photo enters the shortlist by its base distance or its votes. A draw keeps the inliers
of the photos that it has verified, so that each pair of photos is compared once.
Shapes: n draws.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .distance import Floats
from .drawn import NOBODY, Draws, Measured, Queries, Shortlists
from .sampling import lives
from .snapshot import Filter, Rows
from .verified_search import Query, Shortlist, VerifiedSearch, most_votes
from .votes import InvertedLists, PhotoWords, Words

Near = Sequence[tuple[int, float]]  # position and distance of the nearest items, in order


@dataclass(frozen=True)
class Drawn:
    """The result of one draw. Photos are seqs, NOBODY if there is none."""

    distance: float  # to the nearest other item
    nearest: int
    duplicate: int
    own: float  # distance to the own item
    own_nearest: int
    radius: float  # as in `Shortlists`
    least_vote: float
    seqs: Rows  # photos that the draw depends on, ascending
    inliers: Rows  # of these photos, -1 if they were not verified


@dataclass(frozen=True)
class VerifiedDraws:
    """Makes draws from one snapshot with one verified distance form."""

    search: VerifiedSearch
    is_same: Callable[[Rows, int], bool]  # whether a photo is a copy of one of some others, by position

    def measured(self, queries: Queries, known: Draws, rows: Rows) -> Measured:
        """Return the results of queries; `rows` (n,) holds the row of each in the known draws, -1 for a new query."""
        if known.shortlists is None:
            known, rows = Draws.none(), np.full(len(rows), -1)
        words = [self._words(queries, row) for row in range(len(rows))]
        again = self._again(queries, words, known, rows)
        new = iter(self._drawn(queries, words, np.flatnonzero(again), known, rows))
        return _joined(
            [next(new) if made else _known(known, row) for made, row in zip(again, rows.tolist(), strict=True)]
        )

    def _words(self, queries: Queries, row: int) -> Words:
        position = int(queries.positions[row])
        return self.search.words(queries.features[row]) if position == NOBODY else self.search.stored_words(position)

    def _again(self, queries: Queries, words: Sequence[Words], known: Draws, rows: Rows) -> NDArray[np.bool_]:
        """Return a mask (n,) of the draws to repeat."""
        snapshot, form, again = self.search.snapshot, self.search.form, rows < 0
        if known.shortlists is None or again.all():
            return again
        lists = known.shortlists.rows(rows)
        again |= ((lists.photos != NOBODY) & ~lives(snapshot, lists.photos)).any(axis=1)
        start = int(np.searchsorted(snapshot.seqs, known.until))
        new = start + np.flatnonzero(snapshot.live[start:])
        if not len(new):
            return again
        items = np.unique(snapshot.items[new])
        places = np.minimum(np.searchsorted(snapshot.seqs, lists.photos), len(snapshot.seqs) - 1)
        again |= (np.isin(snapshot.items[places], items) & (lists.photos != NOBODY)).any(axis=1)
        again |= np.isin(queries.numbers, items)
        waiting = np.flatnonzero(~again)
        mask = np.zeros(len(snapshot.seqs), dtype=bool)
        mask[new] = True
        only = Filter(mask, new, None, None, ("", []))
        nearest = snapshot.nearest(queries.vectors[waiting], 1, form, self.search.densities, only=only)
        added = [self.search.stored_words(position) for position in new.tolist()]
        votes = InvertedLists.of(PhotoWords.of(added), form.verifier.weights)
        for row, ((_, distance),) in zip(waiting.tolist(), nearest, strict=True):
            score = votes.scores(words[row], form.verifier.weights).max()
            again[row] = distance <= lists.radius[row] or score > lists.least_votes[row]
        return again

    def _drawn(self, queries: Queries, words: Sequence[Words], chosen: Rows, known: Draws, rows: Rows) -> list[Drawn]:
        """Return new draws of the chosen queries; photos that the known draws have verified are not verified again."""
        own = self.search.form.densities(queries.vectors[chosen]).tolist()
        others = self._others(queries, chosen)

        def drawn(place: int) -> Drawn:
            row = int(chosen[place])
            position, number = int(queries.positions[row]), int(queries.numbers[row])
            near, same = others[place]
            left_out = frozenset([number, *self.search.snapshot.items[same].tolist()])
            features = self._features(queries, row)
            counted = self._counted(known, int(rows[row]))
            query = Query(queries.vectors[row], own[place], features, words[row], position, left_out, counted)
            return self._draw(query, number, near, same)

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            return list(pool.map(drawn, range(len(chosen))))

    def _counted(self, known: Draws, row: int) -> dict[int, int]:
        """Return the inliers of the photos that a known draw has verified, by position; of no photo for row -1."""
        if row < 0 or known.shortlists is None:
            return {}
        seqs, inliers = known.shortlists.photos[row], known.shortlists.inliers[row]
        there = (inliers >= 0) & lives(self.search.snapshot, seqs)
        positions = np.searchsorted(self.search.snapshot.seqs, seqs[there])
        return dict(zip(positions.tolist(), inliers[there].tolist(), strict=True))

    def _features(self, queries: Queries, row: int) -> bytes:
        position = queries.positions[row : row + 1]
        return queries.features[row] if position[0] == NOBODY else self.search.snapshot.features(position)[0]

    def _others(self, queries: Queries, chosen: Rows) -> list[tuple[Near, list[int]]]:
        """Return the nearest other items of each chosen query, and the positions of its duplicates.

        The items are as many as are verified. A duplicate is the nearest photo of an item with a copy of the query.
        """
        snapshot, items = self.search.snapshot, self.search.items
        found: list[tuple[Near, list[int]]] = [([], [])] * len(chosen)
        waiting, count = np.arange(len(chosen)), items + 1
        while len(waiting):
            vectors, again = queries.vectors[chosen[waiting]], []
            answers = snapshot.nearest(vectors, count, self.search.form, self.search.densities)
            for place, best in zip(waiting.tolist(), answers, strict=True):
                row = int(chosen[place])
                others = [near for near in best if snapshot.items[near[0]] != queries.numbers[row]]
                same = [p for p, _ in others if self.is_same(queries.positions[row : row + 1], p)]
                rest = [near for near in others if near[0] not in same]
                found[place] = rest[:items], same
                if len(rest) < items and len(best) == count:
                    again.append(place)
            waiting, count = np.array(again, dtype=np.int64), 4 * count
        return found

    def _draw(self, query: Query, number: int, near: Near, same: Sequence[int]) -> Drawn:
        seqs, found = self.search.snapshot.seqs, self.search.shortlist(query, near)
        best = self.search.by_item(found, near, 1)
        own, own_position, counted = self._own(query, number, near, found)
        counted |= dict(zip(found.verified.tolist(), found.inliers.tolist(), strict=True))
        nearest = [position for position, _ in best]
        closest = [position for position in (own_position,) if position != NOBODY]
        depends = np.array(sorted({*counted, *nearest, *same, *closest}), dtype=np.int64)
        return Drawn(
            best[0][1] if best else np.inf,
            int(seqs[nearest[0]]) if nearest else NOBODY,
            int(seqs[same[0]]) if same else NOBODY,
            own,
            int(seqs[own_position]) if closest else NOBODY,
            found.radius,
            found.least_vote,
            seqs[depends],
            np.array([counted.get(position, -1) for position in depends.tolist()], dtype=np.int64),
        )

    def _own(self, query: Query, number: int, near: Near, found: Shortlist) -> tuple[float, int, dict[int, int]]:
        """Return distance and position of the nearest photo of the own item, and the inliers of its verified photos."""
        search = self.search
        positions = np.sort(search.photos_of(np.array([number], dtype=np.int32)))
        positions = positions[positions != query.own]
        if not len(positions):
            return np.inf, NOBODY, {}
        distances, scores = search.distances(query, positions), search.scores(query.words)[positions]
        first = int(np.lexsort((positions, distances))[0])
        last = (near[-1][1], near[-1][0]) if len(near) == search.items else (np.inf, NOBODY)
        verified = positions[:0]
        if (distances[first], positions[first]) < last:
            verified = search.nearest_photos(positions, distances, np.array([number]))
        voting = np.concatenate([found.voted, positions[scores > 0]])
        voted, _ = most_votes(voting, np.concatenate([found.scores, scores[scores > 0]]), search.form.verifier.voted)
        verified = np.union1d(verified, np.intersect1d(voted, positions))
        inliers = search.inliers(query, verified)
        fused = search.fused(positions, distances, verified, inliers)
        best = int(np.lexsort((positions, fused))[0])
        counted = dict(zip(verified.tolist(), inliers.tolist(), strict=True))
        return float(fused[best]), int(positions[best]), counted


def _known(known: Draws, row: int) -> Drawn:
    """Return a known draw unchanged."""
    nothing = np.zeros((0, 0), np.int64)
    lists = known.shortlists or Shortlists(np.zeros(0), np.zeros(0), nothing, nothing)
    photos = lists.photos[row]
    return Drawn(
        float(known.distances[row]),
        int(known.nearest[row]),
        int(known.duplicates[row]),
        float(known.own[row]),
        int(known.own_nearest[row]),
        float(lists.radius[row]),
        float(lists.least_votes[row]),
        photos[photos != NOBODY],
        lists.inliers[row][photos != NOBODY],
    )


def _joined(draws: Sequence[Drawn]) -> Measured:
    """Return the draws as arrays."""

    def floats(values: Sequence[float]) -> Floats:
        return np.array(values, dtype=np.float64)

    def whole(values: Sequence[int]) -> Rows:
        return np.array(values, dtype=np.int64)

    width = max((len(draw.seqs) for draw in draws), default=0)
    seqs, inliers = np.full((2, len(draws), width), NOBODY, np.int64)
    for row, draw in enumerate(draws):
        seqs[row, width - len(draw.seqs) :] = draw.seqs
        inliers[row, width - len(draw.seqs) :] = draw.inliers
    return Measured(
        floats([draw.distance for draw in draws]),
        whole([draw.nearest for draw in draws]),
        whole([draw.duplicate for draw in draws]),
        floats([draw.own for draw in draws]),
        whole([draw.own_nearest for draw in draws]),
        Shortlists(floats([draw.radius for draw in draws]), floats([draw.least_vote for draw in draws]), seqs, inliers),
    )
