"""Verified searches: the shortlist of a query, its inliers, and the items by their verified distance.

The shortlist holds the nearest photos of the nearest items by the base distance, and the photos with the most votes.
It does not depend on the number of requested items. The distance of a photo on the shortlist is lowered by its inliers,
other photos keep their base distance, and the distance of an item is that of its nearest photo. Features are read for
the query and its shortlist only. Each photo of a query is compared with its own shortlist (`verified`).
Shapes: n queries, d = embedding size, m photos, q photos of a query, v verified photos.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from index.snapshot import Snapshot

from .distance import Floats, Rows, squared_distance
from .filters import Filter
from .verified import Features, Points, VerifiedDistance, photos_of
from .votes import InvertedLists

NOT_COMPARED = -1  # in place of the inliers of two photos that were not compared
Votes = tuple[Rows, Floats]  # positions of the photos with the most votes, and their scores


@dataclass(frozen=True)
class Query:
    """The photos of one search."""

    vector: NDArray[np.float32]  # (d,) of length one
    density: float
    features: tuple[bytes, ...]  # (q) of each photo
    asked: tuple[Points, ...]  # (q) of each photo
    own: tuple[int, ...] = ()  # positions of the photos, if they are in the gallery
    left_out: frozenset[int] = frozenset()  # numbers of the items that are not searched


@dataclass(frozen=True)
class Shortlist:
    """The verified photos of one query, and all photos that it was compared with."""

    positions: Rows  # (m,) photos that were compared, ascending
    distances: Floats  # (m,) of these photos: verified for the shortlist, base for the others
    verified: Rows  # (v,) positions of the shortlist, ascending
    inliers: Rows  # (q, v) of the shortlist with each photo of the query, NOT_COMPARED if it is on another's only
    votes: Sequence[Votes]  # (q)
    radius: float  # base distance of the last item of the shortlist, inf if all items are in it
    least_votes: Floats  # (q,) least score of the shortlist's votes, 0 if every photo with a vote is in it
    scores: Sequence[Floats]  # (q) of all photos of the snapshot


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
        features: Sequence[Features],
        k: int,
        *,
        only: Filter | None = None,
    ) -> list[list[tuple[int, float]]]:
        """Return position and distance of the k nearest items, by their nearest photo, for unit vectors (n, d)."""
        count = max(k, self.items)
        near = self.snapshot.nearest(vectors, count, self.form, self.densities, only=only)
        own = self.form.densities(vectors).tolist()
        answers = []
        for vector, density, some, best in zip(vectors, own, features, near, strict=True):
            photos = photos_of(some)
            query = Query(vector, density, photos, tuple(map(self.form.verifier.asked, photos)))
            answers.append(self.by_item(self.shortlist(query, best, only=only), best, k))
        return answers

    @property
    def items(self) -> int:
        """The number of nearest items that are verified."""
        return max(1, self.form.verifier.items)

    def shortlist(self, query: Query, near: Sequence[tuple[int, float]], *, only: Filter | None = None) -> Shortlist:
        """Return the verified shortlist of a query from position and distance of its nearest items, in order."""
        every = [self.scores(asked) for asked in query.asked]
        votes = [self.votes(query, scores, only) for scores in every]
        first = self.snapshot.items[[position for position, _ in near[: self.items]]]
        voted = np.concatenate([positions for positions, _ in votes])
        positions = self.photos_of(np.union1d(first, self.snapshot.items[voted]))
        positions = np.sort(positions[~np.isin(positions, query.own)])
        if only is not None:
            positions = positions[only.mask[positions]]
        distances = self.distances(query, positions)
        nearest = self.nearest_photos(positions, distances, first)
        verified, inliers = self.inliers(query, [np.union1d(nearest, voted) for voted, _ in votes])
        fused = self.fused(positions, distances, verified, inliers)
        radius = near[self.items - 1][1] if len(near) >= self.items else np.inf
        least = [scores.min(initial=np.inf) if len(scores) == self.form.verifier.voted else 0 for _, scores in votes]
        return Shortlist(positions, fused, verified, inliers, votes, radius, np.array(least, dtype=np.float64), every)

    def by_item(self, found: Shortlist, near: Sequence[tuple[int, float]], k: int) -> list[tuple[int, float]]:
        """Return position and distance of the k nearest items of a shortlist and of `near`, by their nearest photo."""
        positions = np.concatenate([found.positions, np.array([p for p, _ in near], dtype=np.int64)])
        distances = np.concatenate([found.distances, np.array([distance for _, distance in near])])
        order = np.lexsort((positions, distances))
        items = self.snapshot.items[positions[order]]
        best = order[np.sort(np.unique(items, return_index=True)[1])[:k]]
        return list(zip(positions[best].tolist(), distances[best].tolist(), strict=True))

    def scores(self, asked: Points, start: int = 0) -> Floats:
        """Return the score of each photo of the snapshot, from position `start` on, for the points of a query."""
        lists = self.lists[self.snapshot.segment_at(start) :]
        return self.snapshot.by_position([each.scores(asked, self.form.verifier.voting) for each in lists], start)

    def votes(self, query: Query, scores: Floats, only: Filter | None = None) -> Votes:
        """Return the photos with the most votes, given the scores of all photos for one photo of a query."""
        passing = self.snapshot.live if only is None else only.mask
        positions = np.flatnonzero((scores > 0) & passing)
        if query.left_out:
            positions = positions[~np.isin(self.snapshot.items[positions], list(query.left_out))]
        positions = positions[~np.isin(positions, query.own)]
        return most_votes(positions, scores[positions], self.form.verifier.voted)

    def distances(self, query: Query, positions: Rows) -> Floats:
        """Return the base distances of the photos at some positions."""
        squared = squared_distance(query.vector[None], self.snapshot.vectors(positions))
        return self.form.transform(squared, np.full(len(positions), query.density), self.densities[0][positions])

    def inliers(self, query: Query, chosen: Sequence[Rows]) -> tuple[Rows, Rows]:
        """Return the positions (v,) chosen for any photo of a query, and the inliers (q, v) of those chosen for it."""
        verified = np.unique(np.concatenate(chosen))
        counts = np.full((len(chosen), len(verified)), NOT_COMPARED, np.int64)
        for number, positions in enumerate(chosen):
            if len(positions):
                found = self.form.verifier.inliers(query.features[number], self.snapshot.features(positions))
                counts[number, np.searchsorted(verified, positions)] = found
        return verified, counts

    def fused(self, positions: Rows, distances: Floats, verified: Rows, inliers: Rows) -> Floats:
        """Return the distances (m,) of the photos at some positions, lowered by the greatest inliers of each column."""
        if not len(verified):
            return distances
        places, lowered = np.searchsorted(positions, verified), distances.copy()
        fused = self.form.verifier.fused(distances[places], inliers.max(axis=0))
        lowered[places] = np.minimum(fused, distances[places])
        return lowered

    def nearest_photos(self, positions: Rows, distances: Floats, items: NDArray[np.int32]) -> Rows:
        """Return the nearest photos of each of some items, as many as are verified."""
        numbers = self.snapshot.items[positions]
        order = np.lexsort((positions, distances, numbers))
        ordered = numbers[order]
        turn = np.arange(len(order)) - np.searchsorted(ordered, ordered)
        return positions[order[(turn < self.form.verifier.photos) & np.isin(ordered, items)]]

    def photos_of(self, items: NDArray[np.int32]) -> Rows:
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


def most_votes(positions: Rows, scores: Floats, count: int) -> tuple[Rows, Floats]:
    """Return the `count` positions with the greatest scores, and these scores, the greatest first.

    Photos with the same score are taken in insertion order.
    """
    if 0 < count < len(positions):  # sorting all would take longer
        some = scores >= np.partition(scores, len(scores) - count)[len(scores) - count]
        positions, scores = positions[some], scores[some]
    order = np.lexsort((positions, -scores))[:count]
    return positions[order], scores[order]
