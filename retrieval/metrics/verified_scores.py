"""Searches with a verified distance: shortlists are verified once, then scored with any strength of the verification.

The shortlist of a search is that of a gallery (`index.search.verified_search`). Each query has two: of the search with
its own item in the gallery, and of the search without it.
Shapes: n queries, m gallery photos, v verified pairs of a query and a photo, T items.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from index.search.distance import Floats
from index.search.verified import VerifiedDistance, Verifier
from index.search.verified_search import most_votes
from index.search.votes import InvertedLists, PhotoPoints
from retrieval.process import cores

from .identification import NEAR, SearchScores
from .item_distances import ItemDistances, QueryBlock

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class SearchSide:
    """Photos on one side of searches: queries or gallery, p of them."""

    vectors: NDArray[np.float32]  # (p, d) of length 1
    labels: NDArray[np.generic]  # (p,)
    features: Sequence[bytes]
    ids: NDArray[np.generic] | None = None  # (p,) a photo is not compared with the one of the same id


@dataclass(frozen=True)
class VerifiedPairs:
    """The verified pairs of all searches."""

    rows: Rows  # (v,) query
    items: Rows  # (v,) place of the item in `items`
    distances: Floats  # (v,) base distance
    inliers: Rows  # (v,)
    own: NDArray[np.bool_]  # (v,) whether the photo shows the query's own item
    mated: NDArray[np.bool_]  # (v,) on the shortlist of the search with the own item
    non_mated: NDArray[np.bool_]  # (v,) on the shortlist of the search without it


@dataclass(frozen=True)
class VerifiedSearches:
    """Searches whose shortlists are verified. `scores` applies a verifier's fusion to them."""

    labels: NDArray[np.generic]  # (n,) item of each query
    own: Floats  # (n,) base distance to the own item, inf if it is not in the gallery
    nearest: Floats  # (n, k) base distances to the nearest other items, ascending
    nearest_items: Rows  # (n, k) places of these items
    gallery_items: int
    pairs: VerifiedPairs
    seconds: float  # spent on comparing local features

    def scores(self, verifier: Verifier) -> SearchScores:
        """Return the distances of every query to its own item and to the nearest other items, fused."""
        pairs = self.pairs
        fused = np.minimum(verifier.fused(pairs.distances, pairs.inliers), pairs.distances)
        own = self.own.copy()
        chosen = pairs.own & pairs.mated
        np.minimum.at(own, pairs.rows[chosen], fused[chosen])
        kept = min(NEAR, self.nearest.shape[1])
        near = self.nearest[:, :kept].copy()
        others = np.flatnonzero(~pairs.own & pairs.non_mated)
        others = others[np.lexsort((fused[others], pairs.items[others], pairs.rows[others]))]
        best = np.ones(len(others), dtype=bool)  # the nearest photo of each item
        best[1:] = (np.diff(pairs.rows[others]) != 0) | (np.diff(pairs.items[others]) != 0)
        others = others[best]
        starts = np.searchsorted(pairs.rows[others], np.arange(len(near) + 1))
        for row in range(len(near)):
            verified = others[starts[row] : starts[row + 1]]
            _, places, among = np.intersect1d(
                self.nearest_items[row], pairs.items[verified], assume_unique=True, return_indices=True
            )
            distances = self.nearest[row].copy()
            distances[places] = np.minimum(distances[places], fused[verified[among]])
            further = fused[np.delete(verified, among)]  # items that the votes found
            near[row] = np.sort(np.concatenate([distances, further]))[:kept]
        impostor = near[:, 0].copy() if kept else np.full(len(own), np.inf)
        return SearchScores(self.labels, own, impostor, self.gallery_items, near)


def verified_scores(queries: SearchSide, gallery: SearchSide, distance_form: VerifiedDistance) -> SearchScores:
    """Return the distances of every query to its own item and to the nearest other items, verified."""
    return verify_searches(queries, gallery, distance_form).scores(distance_form.verifier)


def verify_searches(queries: SearchSide, gallery: SearchSide, distance_form: VerifiedDistance) -> VerifiedSearches:
    """Search the gallery with every query and verify both shortlists of each."""
    searched, verifier = _Searched(gallery, distance_form), distance_form.verifier
    side, count = searched.side, len(queries.labels)
    kept = min(NEAR + verifier.items + verifier.voted, len(side.items))
    own, nearest = np.full(count, np.inf), np.full((count, kept), np.inf)
    nearest_items = np.zeros((count, kept), np.int64)
    densities = distance_form.base.densities(queries.vectors)
    parts: list[_Part] = []
    with ThreadPoolExecutor(cores()) as pool:
        for block in side.blocks(_unit(queries.vectors), queries.labels, densities=densities, ids=queries.ids):
            distances = side.distances(block.squared, block.densities)
            _note_base(side, block, distances, own, nearest, nearest_items)
            rows = range(*block.rows.indices(count))
            features = [queries.features[row] for row in rows]
            parts += pool.map(searched.verified, rows, features, distances, block.own)
    pairs = VerifiedPairs(*(np.concatenate(column) for column in zip(*(part.columns for part in parts), strict=True)))
    seconds = sum(part.seconds for part in parts)
    return VerifiedSearches(queries.labels, own, nearest, nearest_items, len(side.items), pairs, seconds)


@dataclass(frozen=True)
class _Part:
    """The verified pairs of one query."""

    columns: tuple[NDArray[np.generic], ...]  # the fields of VerifiedPairs
    seconds: float


class _Searched:
    """The gallery of searches, with its photos in the order of their items."""

    def __init__(self, gallery: SearchSide, distance_form: VerifiedDistance) -> None:
        self._verifier, base = distance_form.verifier, distance_form.base
        self.side = ItemDistances(
            _unit(gallery.vectors),
            gallery.labels,
            densities=base.densities(gallery.vectors),
            ids=gallery.ids,
            distance_form=base,
        )
        self._codes = np.searchsorted(self.side.items, self.side.labels)
        self._features = [gallery.features[place] for place in self.side.order.tolist()]
        points = PhotoPoints.of([self._verifier.points(content) for content in self._features])
        self._lists = InvertedLists.of(points, self._verifier.voting)

    def verified(self, row: int, query: bytes, distances: Floats, own: NDArray[np.bool_]) -> _Part:
        """Return the verified pairs of a query, given its base distances (m,) and its item's photos (m,)."""
        votes = self._lists.scores(self._verifier.asked(query), self._verifier.voting)
        mated = self._shortlist(distances, votes)
        non_mated = self._shortlist(np.where(own, np.inf, distances), votes)
        photos = np.union1d(mated, non_mated)
        started = time.perf_counter()
        inliers = self._verifier.inliers(query, [self._features[photo] for photo in photos.tolist()])
        seconds = time.perf_counter() - started
        lists = np.isin(photos, mated), np.isin(photos, non_mated)
        rows = np.full(len(photos), row)
        return _Part((rows, self._codes[photos], distances[photos], inliers, own[photos], *lists), seconds)

    def _shortlist(self, distances: Floats, votes: Floats) -> Rows:
        """Return the photos to verify (s,) of a search, whose left out photos are at distance inf."""
        verifier, there = self._verifier, np.isfinite(distances)
        order = np.argsort(distances, kind="stable")[: int(there.sum())]
        _, first, numbers = np.unique(self._codes[order], return_index=True, return_inverse=True)
        rank_of_item = np.empty(len(first), np.int64)
        rank_of_item[np.argsort(first)] = np.arange(len(first))
        by_item = np.argsort(numbers, kind="stable")  # photos of an item in order of their distance
        rank_in_item = np.empty(len(order), np.int64)
        rank_in_item[by_item] = np.arange(len(order)) - np.searchsorted(numbers[by_item], numbers[by_item])
        nearest = order[(rank_of_item[numbers] < verifier.items) & (rank_in_item < verifier.photos)]
        with_votes = np.flatnonzero(there & (votes > 0))
        return np.union1d(nearest, most_votes(with_votes, votes[with_votes], verifier.voted)[0])


def _note_base(
    side: ItemDistances, block: QueryBlock, distances: Floats, own: Floats, nearest: Floats, nearest_items: Rows
) -> None:
    """Write the base distances of a block to the own item and to the nearest other items."""
    own[block.rows] = np.where(block.own, distances, np.inf).min(axis=1)
    by_item = side.to_items(np.where(block.own, np.inf, distances))
    order = np.argsort(by_item, axis=1, kind="stable")[:, : nearest.shape[1]]
    nearest[block.rows], nearest_items[block.rows] = np.take_along_axis(by_item, order, axis=1), order


def _unit(vectors: NDArray[np.float32]) -> Floats:
    exact = vectors.astype(np.float64)
    return np.asarray(exact / np.maximum(np.linalg.norm(exact, axis=1, keepdims=True), 1e-30))
