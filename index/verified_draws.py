"""Draws with a verified distance form, and the choice of the draws to repeat after a change of photos.

The own item and the duplicates of a query are left out before its shortlist is made. The distance to the own item is
that of a search in which only the query's own photos are left out: photos of the own item are verified if they are on
the shortlist of that search.

A draw is repeated if a photo that it depends on was removed, if an added photo belongs to the item of such a photo or
to the own item, or if an added photo enters the shortlist by its base distance or its votes. A draw stores the inliers
of the photos that it has verified, so each pair of photos is compared once.
Shapes: n draws, s photos that a draw depends on, q photos of a query, v verified photos.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .distance import Floats
from .drawn import NOBODY, Draws, Measured, Queries, Shortlists
from .sampling import lives
from .stored import Filter, Rows
from .verified import photos_of
from .verified_search import NOT_COMPARED, Query, Shortlist, VerifiedSearch, most_votes

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
    least_votes: Floats  # (q,)
    seqs: Rows  # (s,) photos that the draw depends on, ascending
    inliers: Rows  # (s, q) of these photos with each photo of the query


@dataclass(frozen=True)
class VerifiedDraws:
    """Makes draws from one snapshot with one verified distance form."""

    search: VerifiedSearch
    is_same: Callable[[Rows, int], bool]  # whether a photo is a copy of one of some others, by position

    def measured(self, queries: Queries, known: Draws, rows: Rows) -> Measured:
        """Return the results of queries; `rows` (n,) holds the row of each in the known draws, -1 for a new query."""
        if known.shortlists is None:
            known, rows = Draws.none(), np.full(len(rows), -1)
        again = self._again(queries, known, rows)
        new = iter(self._drawn(queries, np.flatnonzero(again), known, rows))
        draws = [next(new) if made else _known(known, row) for made, row in zip(again, rows.tolist(), strict=True)]
        return _joined(draws, photos=_photos_of_each(queries))

    def _again(self, queries: Queries, known: Draws, rows: Rows) -> NDArray[np.bool_]:
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
        for row, ((_, distance),) in zip(waiting.tolist(), nearest, strict=True):
            again[row] = distance <= lists.radius[row]
            if not again[row]:
                asked = map(form.verifier.asked, self._features(queries, row))
                scores = np.array([self.search.scores(some, start)[new - start].max() for some in asked])
                again[row] = (scores > lists.least_votes[row]).any()
        return again

    def _drawn(self, queries: Queries, chosen: Rows, known: Draws, rows: Rows) -> list[Drawn]:
        """Return new draws of the chosen queries; photos that the known draws have verified are not verified again."""
        own = self.search.form.densities(queries.vectors[chosen]).tolist()
        others = self._others(queries, chosen)

        def drawn(place: int) -> Drawn:
            row = int(chosen[place])
            positions, number = _own_positions(queries, row), int(queries.numbers[row])
            near, same = others[place]
            left_out = frozenset([number, *self.search.snapshot.items[same].tolist()])
            features = self._features(queries, row)
            counted = self._counted(known, int(rows[row]))
            asked = tuple(map(self.search.form.verifier.asked, features))
            query = Query(queries.vectors[row], own[place], features, asked, positions, left_out, counted)
            return self._draw(query, number, near, same)

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            return list(pool.map(drawn, range(len(chosen))))

    def _counted(self, known: Draws, row: int) -> dict[tuple[int, int], int]:
        """Return the inliers that a known draw has counted, as in `Query.known`; none for row -1."""
        if row < 0 or known.shortlists is None:
            return {}
        seqs, inliers = known.shortlists.photos[row], known.shortlists.inliers[row]
        places, numbers = np.nonzero((inliers != NOT_COMPARED) & lives(self.search.snapshot, seqs)[:, None])
        positions = np.searchsorted(self.search.snapshot.seqs, seqs[places])
        pairs = zip(numbers.tolist(), positions.tolist(), strict=True)
        return dict(zip(pairs, inliers[places, numbers].tolist(), strict=True))

    def _features(self, queries: Queries, row: int) -> tuple[bytes, ...]:
        positions = _own_positions(queries, row)
        if positions:
            return tuple(self.search.snapshot.features(np.array(positions)))
        return photos_of(queries.features[row])

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
                same = [p for p, _ in others if self.is_same(queries.positions[row], p)]
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
        counted |= dict(zip(found.verified.tolist(), found.inliers.T.tolist(), strict=True))
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
            found.least_votes,
            seqs[depends],
            _inliers_of(depends, counted, photos=len(query.features)),
        )

    def _own(self, query: Query, number: int, near: Near, found: Shortlist) -> tuple[float, int, dict[int, list[int]]]:
        """Return distance and position of the nearest photo of the own item, and the inliers of its verified photos."""
        search = self.search
        positions = np.sort(search.photos_of(np.array([number], dtype=np.int32)))
        positions = positions[~np.isin(positions, query.own)]
        if not len(positions):
            return np.inf, NOBODY, {}
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
        counted = dict(zip(verified.tolist(), inliers.T.tolist(), strict=True))
        return float(fused[best]), int(positions[best]), counted


def _own_positions(queries: Queries, row: int) -> tuple[int, ...]:
    """Return the positions of a query's photos in the gallery, none for a probe."""
    return tuple(position for position in np.atleast_1d(queries.positions[row]).tolist() if position != NOBODY)


def _photos_of_each(queries: Queries) -> int:
    """Return the number of photos of each query, 1 if there is no query."""
    if not len(queries.positions):
        return 1
    return len(_own_positions(queries, 0)) or len(photos_of(queries.features[0]))


def _inliers_of(positions: Rows, counted: Mapping[int, Sequence[int]], *, photos: int) -> Rows:
    """Return the inliers (s, q) of the photos at some positions."""
    nothing = [NOT_COMPARED] * photos
    return np.array([counted.get(position, nothing) for position in positions.tolist()], np.int64).reshape(-1, photos)


def _known(known: Draws, row: int) -> Drawn:
    """Return a known draw unchanged."""
    lists = known.shortlists or Shortlists.none()
    photos = lists.photos[row]
    return Drawn(
        float(known.distances[row]),
        int(known.nearest[row]),
        int(known.duplicates[row]),
        float(known.own[row]),
        int(known.own_nearest[row]),
        float(lists.radius[row]),
        lists.least_votes[row],
        photos[photos != NOBODY],
        lists.inliers[row][photos != NOBODY],
    )


def _joined(draws: Sequence[Drawn], *, photos: int) -> Measured:
    """Return the draws of queries of some photos as arrays."""

    def floats(values: Sequence[float]) -> Floats:
        return np.array(values, dtype=np.float64)

    def whole(values: Sequence[int]) -> Rows:
        return np.array(values, dtype=np.int64)

    width = max((len(draw.seqs) for draw in draws), default=0)
    seqs = np.full((len(draws), width), NOBODY, np.int64)
    inliers = np.full((len(draws), width, photos), NOT_COMPARED, np.int64)
    for row, draw in enumerate(draws):
        seqs[row, width - len(draw.seqs) :] = draw.seqs
        inliers[row, width - len(draw.seqs) :] = draw.inliers
    return Measured(
        floats([draw.distance for draw in draws]),
        whole([draw.nearest for draw in draws]),
        whole([draw.duplicate for draw in draws]),
        floats([draw.own for draw in draws]),
        whole([draw.own_nearest for draw in draws]),
        Shortlists(
            floats([draw.radius for draw in draws]),
            np.array([draw.least_votes for draw in draws], dtype=np.float64).reshape(-1, photos),
            seqs,
            inliers,
        ),
    )
