"""Divisions of a data set into known and unknown items, and what a threshold from the gallery's own draws realises.

The gallery photos of the known items fill a gallery. Its own draws set the threshold, and the query photos of the
unknown items test it. No unknown item is in the gallery or helps to set the threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from index.photos import Photos
from index.photos.arrays import ArrayPhotos
from index.search.distance import accepts
from index.search.item_distance import NEAREST_PHOTO, ItemDistance
from retrieval.errors import CalibrationError
from retrieval.measuring.drawing import Drawing
from retrieval.measuring.draws import OWN, AllDraws
from retrieval.measuring.fpir import DrawnDistances
from retrieval.measuring.rule import set_threshold
from retrieval.metrics.identification import SearchScores, search_scores

TARGET = 0.05
NOTHING = -1.0  # a threshold that accepts nothing
LEAST_ITEMS = 15  # below the usual 20, so that grocery can be measured


@dataclass(frozen=True)
class Data:
    """Photos of a data set: unit vectors (n, d), item ids, and gallery flags. The other photos are queries."""

    vectors: np.ndarray
    items: np.ndarray
    in_gallery: np.ndarray
    item_distance: ItemDistance = NEAREST_PHOTO

    def threshold(self, shown: np.ndarray) -> float:
        """Return the threshold that a gallery of the photos of a mask (n,) gets; NOTHING if it gets none.

        It gets none if there are too few draws, or no threshold that keeps the target finds an item.
        """
        names = [f"p{number}" for number in np.flatnonzero(shown)]
        gallery = ArrayPhotos(self.vectors[shown], self.items[shown], photo_ids=names)
        draws = own_draws(gallery, self.item_distance)
        try:
            return set_threshold(draws, TARGET, items=gallery.item_count, least_items=LEAST_ITEMS).threshold
        except CalibrationError:
            return NOTHING

    def searches(self, queries: np.ndarray, gallery: np.ndarray) -> SearchScores:
        """Return the distances of the queries of a mask (n,) in the gallery of another one."""
        v, items = self.vectors, self.items
        return search_scores(v[queries], items[queries], v[gallery], items[gallery], item_distance=self.item_distance)


def own_draws(gallery: Photos, item_distance: ItemDistance) -> AllDraws:
    """Return the own draws of a gallery."""
    return AllDraws("", {OWN: Drawing(gallery, item_distance).own()}, frozenset())


@dataclass(frozen=True)
class Repetition:
    """One division of the items: thresholds of own draws and for exactly the target, and searches for both parts."""

    own: float
    exact: float
    unknown: SearchScores
    known: SearchScores

    def fpir(self, threshold: float) -> float:
        """Return the share of searches for unknown items that return a match, with items weighted equally."""
        hits, labels = accepts(self.unknown.impostor, threshold), self.unknown.labels
        return float(np.mean([hits[labels == item].mean() for item in np.unique(labels)]))

    def tpir(self, threshold: float) -> float:
        """Return the share of searches for known items whose own item comes first."""
        return float(np.mean(self.known.correct <= threshold))


def repeat(data: Data, seed: int) -> Repetition:
    """Divide the items, set the threshold, and search."""
    items = np.random.default_rng(seed).permutation(np.unique(data.items))
    known = np.isin(data.items, items[: len(items) // 2])
    shown, asked, unknown = known & data.in_gallery, known & ~data.in_gallery, ~known & ~data.in_gallery
    scores = data.searches(unknown, shown)
    return Repetition(data.threshold(shown), limit(scores), scores, data.searches(asked, shown))


def limit(scores: SearchScores, target: float = TARGET) -> float:
    """Return the greatest threshold with FPIR at most a target on searches, items weighted equally."""
    return DrawnDistances.of_items(scores.impostor, scores.labels).at_share(target)
