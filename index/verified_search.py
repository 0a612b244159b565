"""Verified searches: the shortlist of a query, its inliers, and the items by their verified distance.

The shortlist holds the nearest photos of the nearest items by the base distance, and the photos with the most votes.
It does not depend on how many items are asked for. The distance of a photo of the shortlist is lowered by its inliers,
any other photo keeps its base distance, and an item is as near as its nearest photo. Features are read for the query
and its shortlist only.
Shapes: n queries, d = embedding size, m photos.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from .distance import Floats, squared_distance
from .errors import InvalidParameter
from .snapshot import Filter, Rows, Snapshot
from .verified import VerifiedDistance
from .votes import InvertedLists, Words, distinct


@dataclass(frozen=True)
class Query:
    """A photo to search with."""

    vector: NDArray[np.float32]  # (d,) of length one
    density: float
    features: bytes
    words: Words  # distinct, ascending
    own: int = -1  # position of the photo in the gallery, -1 if it is not there
    left_out: frozenset[int] = frozenset()  # numbers of the items that are not searched
    known: Mapping[int, int] = field(default_factory=dict)  # inliers of photos verified before, by position


@dataclass(frozen=True)
class Shortlist:
    """The verified photos of one query, and all photos that it was compared with."""

    positions: Rows  # (m,) photos that were compared, ascending
    distances: Floats  # (m,) of these photos: verified for the shortlist, base for the others
    verified: Rows  # positions of the shortlist, ascending
    inliers: Rows  # of the shortlist
    voted: Rows  # positions of the photos with the most votes
    scores: Floats  # of these photos
    radius: float  # base distance of the last item of the shortlist, inf if all items are in it
    least_vote: float  # least score of the shortlist's votes, 0 if every photo with a vote is in it


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
        count = max(k, self.items)
        near = self.snapshot.nearest(vectors, count, self.form, self.densities, only=only)
        own = self.form.densities(vectors).tolist()
        answers = []
        for vector, density, some, best in zip(vectors, own, features, near, strict=True):
            query = Query(vector, density, some, self.words(some))
            answers.append(self.by_item(self.shortlist(query, best, only=only), best, k))
        return answers

    @property
    def items(self) -> int:
        """The number of nearest items that are verified."""
        return max(1, self.form.verifier.items)

    def words(self, features: bytes) -> Words:
        """Return the distinct visual words of a photo's features, ascending."""
        return distinct(self.form.verifier, features)

    def stored_words(self, position: int) -> Words:
        """Return the distinct visual words of a photo of the snapshot, ascending."""
        segment = bisect_right(self._starts, position) - 1
        return self.lists[segment].words.photo(position - self._starts[segment])

    def shortlist(self, query: Query, near: Sequence[tuple[int, float]], *, only: Filter | None = None) -> Shortlist:
        """Return the verified shortlist of a query from position and distance of its nearest items, in order."""
        voted, scores = self.votes(query, self.scores(query.words), only)
        least_vote = float(scores.min(initial=np.inf)) if len(voted) == self.form.verifier.voted else 0.0
        first = self.snapshot.items[[position for position, _ in near[: self.items]]]
        positions = self.photos_of(np.union1d(first, self.snapshot.items[voted]))
        positions = np.sort(positions[positions != query.own])
        if only is not None:
            positions = positions[only.mask[positions]]
        distances = self.distances(query, positions)
        verified = np.union1d(self.nearest_photos(positions, distances, first), voted)
        radius = near[self.items - 1][1] if len(near) >= self.items else np.inf
        inliers = self.inliers(query, verified)
        fused = self.fused(positions, distances, verified, inliers)
        return Shortlist(positions, fused, verified, inliers, voted, scores, radius, least_vote)

    def by_item(self, found: Shortlist, near: Sequence[tuple[int, float]], k: int) -> list[tuple[int, float]]:
        """Return position and distance of the k nearest items of a shortlist and of `near`, by their nearest photo."""
        positions = np.concatenate([found.positions, np.array([p for p, _ in near], dtype=np.int64)])
        distances = np.concatenate([found.distances, np.array([distance for _, distance in near])])
        order = np.lexsort((positions, distances))
        items = self.snapshot.items[positions[order]]
        best = order[np.sort(np.unique(items, return_index=True)[1])[:k]]
        return list(zip(positions[best].tolist(), distances[best].tolist(), strict=True))

    def scores(self, words: Words) -> Floats:
        """Return the score of each photo of the snapshot for the words of a query."""
        weights = self.form.verifier.weights
        return np.concatenate([np.zeros(0), *(part.scores(words, weights) for part in self.lists)])

    def votes(self, query: Query, scores: Floats, only: Filter | None = None) -> tuple[Rows, Floats]:
        """Return the positions of the photos with the most votes, and their scores."""
        passing = self.snapshot.live if only is None else only.mask
        positions = np.flatnonzero((scores > 0) & passing)
        if query.left_out:
            positions = positions[~np.isin(self.snapshot.items[positions], list(query.left_out))]
        positions = positions[positions != query.own]
        return most_votes(positions, scores[positions], self.form.verifier.voted)

    def distances(self, query: Query, positions: Rows) -> Floats:
        """Return the base distances of the photos at some positions."""
        squared = squared_distance(query.vector[None], self.snapshot.vectors(positions))
        return self.form.transform(squared, np.full(len(positions), query.density), self.densities[0][positions])

    def inliers(self, query: Query, verified: Rows) -> Rows:
        """Return the inliers of the photos at some positions; known ones are not counted again."""
        new = [position for position in verified.tolist() if position not in query.known]
        counted = dict(query.known)
        if new:
            features = self.snapshot.features(np.array(new, dtype=np.int64))
            counted |= dict(zip(new, self.form.verifier.inliers(query.features, features).tolist(), strict=True))
        return np.array([counted[position] for position in verified.tolist()], dtype=np.int64)

    def fused(self, positions: Rows, distances: Floats, verified: Rows, inliers: Rows) -> Floats:
        """Return the distances (m,) of the photos at some positions, lowered for the verified ones."""
        if not len(verified):
            return distances
        places, lowered = np.searchsorted(positions, verified), distances.copy()
        lowered[places] = np.minimum(self.form.verifier.fused(distances[places], inliers), distances[places])
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
    def _starts(self) -> list[int]:
        """The first position of each segment."""
        return [0, *accumulate(len(segment.seqs) for segment in self.snapshot.segments)]

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


def check_features(features: Sequence[bytes] | None, count: int) -> Sequence[bytes]:
    """Return the features of n queries; raise InvalidParameter if they are missing."""
    if features is None or len(features) != count:
        raise InvalidParameter(
            "features",
            f"have one entry per vector ({count}), because this distance form verifies photos",
            None if features is None else len(features),
        )
    return features
