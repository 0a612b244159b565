"""Searches with several photos: item scores, fused queries, averaged views and re-ranking, and their rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from index.distance import Floats
from retrieval.metrics.reranking import contextual_scorer

from .photo_views import CROP_SHARES, unit_mean

TARGET, DIVISIONS = 0.05, 5
COUNTS = (2, 3)
NEIGHBOURS = (4, 16)  # of contextual re-ranking

Views = Mapping[str, np.ndarray]
Scores = Callable[["Side"], "Searches"]


@dataclass(frozen=True)
class Side:
    """Queries and gallery of some items: vectors of each view, and the item numbers (n,) of the photos."""

    queries: Views
    gallery: Views
    query_items: np.ndarray
    gallery_items: np.ndarray


@dataclass(frozen=True)
class Searches:
    """Distances of n searches to the own item and to the nearest other item, and the number of each item."""

    items: np.ndarray
    own: Floats
    other: Floats

    def tpir(self, weights: Floats | None = None) -> float:
        """Return TPIR at the largest threshold whose FPIR is at most the target, for weights of the items."""
        counts = np.bincount(self.items)
        each = (np.ones(len(counts)) if weights is None else weights)[self.items] / counts[self.items]
        order = np.argsort(self.other, kind="stable")
        first = int(np.searchsorted(np.cumsum(each[order]), TARGET * each.sum() + 1e-9, side="right"))
        threshold = self.other[order[first]]  # accepted distances lie below it
        found = (self.own < threshold) & (self.own < self.other)
        return float(each[found].sum() / each.sum())


def of_items(distances: Floats, items: np.ndarray) -> Searches:
    """Return searches from the distances to items (n, T)."""
    rows = np.arange(len(items))
    others = distances.copy()
    others[rows, items] = np.inf
    return Searches(items, distances[rows, items], others.min(axis=1))


def to_photos(queries: np.ndarray, gallery: np.ndarray) -> Floats:
    """Return plain distances (n, m)."""
    return np.asarray(np.sqrt(np.maximum(2 - 2 * queries.astype(np.float64) @ gallery.T.astype(np.float64), 0)))


def best(distances: np.ndarray, items: np.ndarray) -> Floats:
    """Return the distances to items (n, T): those to the nearest photo."""
    return np.stack([distances[:, items == item].min(axis=1) for item in range(items.max() + 1)], axis=1)


def mean_of_two(distances: Floats, items: np.ndarray) -> Floats:
    """Return the distances to items (n, T): the means of those to the nearest two photos."""
    columns = [np.sort(distances[:, items == item], axis=1)[:, :2].mean(axis=1) for item in range(items.max() + 1)]
    return np.stack(columns, axis=1)


def single(side: Side) -> Searches:
    """Search with single photos; the nearest photo decides."""
    return of_items(best(to_photos(side.queries["photo"], side.gallery["photo"]), side.gallery_items), side.query_items)


def two_photos(side: Side) -> Searches:
    """Search by the mean of the nearest two photos."""
    distances = to_photos(side.queries["photo"], side.gallery["photo"])
    return of_items(mean_of_two(distances, side.gallery_items), side.query_items)


def centroid(side: Side) -> Searches:
    """Search by the distance to the mean vector of each item."""
    return of_items(to_photos(side.queries["photo"], centroids(side)), side.query_items)


def centroids(side: Side) -> np.ndarray:
    """Return the mean vector of each item, scaled to length one."""
    vectors = side.gallery["photo"]
    return np.stack([unit_mean(*vectors[side.gallery_items == item]) for item in range(side.gallery_items.max() + 1)])


def averaged(names: Sequence[str], *, both: bool) -> Scores:
    """Return a search with the mean vectors of some views, of the query or of both sides."""

    def score(side: Side) -> Searches:
        queries = unit_mean(*(side.queries[name] for name in names))
        gallery = unit_mean(*(side.gallery[name] for name in names)) if both else side.gallery["photo"]
        return of_items(best(to_photos(queries, gallery), side.gallery_items), side.query_items)

    return score


def contextual(neighbours: int) -> Scores:
    """Return a search by contextual similarity; for unknown items, also the neighbourhoods lack the own item."""

    def score(side: Side) -> Searches:
        queries, gallery, items = side.queries["photo"], side.gallery["photo"], side.gallery_items
        scorer = contextual_scorer(queries, gallery, neighbours=neighbours)
        own = np.asarray(-scorer(slice(0, len(queries))))
        with_own = best(own, items)
        rows = np.arange(len(queries))
        others = with_own.copy()
        others[rows, side.query_items] = np.inf
        rivals, without = others.min(axis=1), np.empty(len(queries))
        for item in np.unique(side.query_items):
            asked, kept = np.flatnonzero(side.query_items == item), gallery[items != item]
            scorer = contextual_scorer(queries[asked], kept, neighbours=neighbours)
            without[asked] = -scorer(slice(0, len(asked))).max(axis=1)
        found = with_own[rows, side.query_items]
        return Searches(side.query_items, np.where(found < rivals, found, np.inf), without)

    return score


def together(count: int, rule: str) -> Scores:
    """Return a search with `count` photos of one item: "mean vector", "mean distance" or "least distance"."""

    def score(side: Side) -> Searches:
        groups = groups_of(side.query_items, count)
        items, vectors = side.query_items[groups[:, 0]], side.queries["photo"]
        if rule == "mean vector":
            used = unit_mean(*(vectors[groups[:, place]] for place in range(count)))
            return of_items(best(to_photos(used, side.gallery["photo"]), side.gallery_items), items)
        distances = best(to_photos(vectors, side.gallery["photo"]), side.gallery_items)[groups]
        return of_items(distances.mean(axis=1) if rule == "mean distance" else distances.min(axis=1), items)

    return score


def groups_of(items: np.ndarray, count: int) -> np.ndarray:
    """Return random groups (g, count) of photos of one item; every photo is in at most one group of each division."""
    generator, groups = np.random.default_rng(0), []
    for _ in range(DIVISIONS):
        for item in np.unique(items):
            photos = generator.permutation(np.flatnonzero(items == item))
            groups.append(photos[: len(photos) // count * count].reshape(-1, count))
    return np.concatenate(groups)


EVERYTHING = ("photo", "mirror", *(f"crop {share}" for share in CROP_SHARES))
CROP_VIEWS = ("photo", *(f"crop {share}" for share in CROP_SHARES))
TABLES: dict[str, dict[str, Scores]] = {
    "item_score": {"best photo": single, "mean of the best two": two_photos, "centroid": centroid},
    "query_photos": {
        "one photo": single,
        **{
            f"{count} photos, {rule}": together(count, rule)
            for count in COUNTS
            for rule in ("mean vector", "mean distance", "least distance")
        },
    },
    "views": {
        "photo alone": single,
        "mirror image, query": averaged(("photo", "mirror"), both=False),
        "mirror image, both": averaged(("photo", "mirror"), both=True),
        "centre crops, query": averaged(CROP_VIEWS, both=False),
        "centre crops, both": averaged(CROP_VIEWS, both=True),
        "mirror image and centre crops, both": averaged(EVERYTHING, both=True),
    },
    "reranking": {"cosine": single, **{f"contextual, k = {k}": contextual(k) for k in NEIGHBOURS}},
}
