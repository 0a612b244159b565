"""Fresh queries of the demo and their answers.

Symbols: n = queries, m = items.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from index.search.distance import accepts
from index.search.item_distance import NEAREST_PHOTO, ItemDistance
from retrieval.catalogue.read import Photo
from retrieval.retriever import Retriever
from training.data.synthetic.queries import KNOWN, UNKNOWN

RESAMPLES = 2000
BATCH = 64

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rates:
    """Rates of one threshold over the queries for unknown and for known items, with items weighted equally."""

    threshold: float
    fpir: float
    interval: tuple[float, float]  # 95 % interval of the FPIR, by bootstrap over items
    tpir: float
    misidentification: float

    @property
    def precision(self) -> float:
        """Share of answers whose first item is right, where half of the queries are for unknown items; 0 if none."""
        answered = self.tpir + self.misidentification + self.fpir
        return self.tpir / answered if answered else 0.0


@dataclass(frozen=True)
class Nearest:
    """Nearest gallery item of each query (n,) and its distance (n,), by one distance form."""

    items: NDArray[np.str_]
    distances: Floats


@dataclass(frozen=True)
class Answers:
    """Queries in their order, with the nearest item by the bundle's distance and by the plain distance."""

    photos: Sequence[Photo]
    trained: frozenset[str]  # items that the model was trained on
    served: Nearest
    plain: Nearest
    threshold: float  # that serves

    @property
    def matched(self) -> NDArray[np.bool_]:
        """Return whether each query has a match at the serving threshold (n,)."""
        return accepts(self.served.distances, self.threshold)

    @property
    def right(self) -> NDArray[np.bool_]:
        """Return whether each query matches the right item first (n,)."""
        return np.asarray(self.matched & (self.served.items == self.items))

    @property
    def kinds(self) -> NDArray[np.str_]:
        """Kind of each query (n,)."""
        return np.array([photo.metadata["kind"] for photo in self.photos])

    @property
    def items(self) -> NDArray[np.str_]:
        """Item that each query shows (n,)."""
        return np.array([photo.item_id for photo in self.photos])

    def rates(self, nearest: Nearest, threshold: float) -> Rates:
        """Return the rates of a threshold on distances to the nearest items."""
        hits = accepts(nearest.distances, threshold)
        known, unknown = self.kinds == KNOWN, self.kinds == UNKNOWN
        right = nearest.items == self.items
        by_item = item_means(hits[unknown], self.items[unknown])
        return Rates(
            threshold,
            float(by_item.mean()),
            bootstrap_interval(by_item),
            float((hits & right)[known].mean()),
            float((hits & ~right)[known].mean()),
        )


def item_means(hits: NDArray[np.bool_], items: NDArray[np.str_]) -> Floats:
    """Return the share of hits of each item (m,)."""
    codes = np.unique(items, return_inverse=True)[1]
    return np.asarray(np.bincount(codes, weights=hits) / np.bincount(codes))


def bootstrap_interval(by_item: Floats, *, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % interval of the mean over items (m,), by bootstrap."""
    generator = np.random.default_rng(seed)
    means = by_item[generator.integers(0, len(by_item), (RESAMPLES, len(by_item)))].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975)).tolist()
    return low, high


def ask(retriever: Retriever, photos: Sequence[Photo], trained: Collection[str]) -> Answers:
    """Search the gallery with every query."""
    vectors = np.concatenate(
        [
            retriever.embedder.embed([photo.path for photo in photos[start : start + BATCH]]).vectors
            for start in range(0, len(photos), BATCH)
        ]
    )
    served, plain = (_nearest(retriever, vectors, form) for form in (retriever.bundle.item_distance, NEAREST_PHOTO))
    return Answers(photos, frozenset(trained), served, plain, retriever.point.threshold)


def _nearest(retriever: Retriever, vectors: NDArray[np.float32], item_distance: ItemDistance) -> Nearest:
    found = [items[0] for items in retriever.gallery.search(vectors, 1, item_distance=item_distance)]
    return Nearest(np.array([item.item_id for item in found]), np.array([item.distance for item in found]))
