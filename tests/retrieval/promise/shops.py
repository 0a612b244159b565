"""Shops: vectors of items of uneven sizes, with ids in no order and items of one kind, and the lists that a database
returns for them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from index.photos.arrays import ArrayPhotos
from index.search.item_distance import ItemDistance
from index.search.item_search import ItemSearch
from index.search.tables import Table
from retrieval.promise.metric import METRICS
from retrieval.promise.neighbours import ItemMeans, Measured, listed, measure_items
from retrieval.promise.promise import Promise
from retrieval.promise.vectors import means_of

ITEMS, DIM = 120, 24


@dataclass(frozen=True)
class Shop:
    """Vectors (n, d) of length one, with items and groups (n,)."""

    vectors: np.ndarray
    items: list[str]
    groups: list[str]

    @property
    def photos(self) -> ArrayPhotos:
        """The vectors as photos."""
        return ArrayPhotos(self.vectors, self.items, groups=self.groups)

    def search(self, queries: np.ndarray) -> Table:
        """Return the item distances of the nearest items, by the search of galleries."""
        return ItemSearch(self.photos, ItemDistance.default()).nearest(queries, 24)

    def neighbours(self, query: np.ndarray, k: int, metric: str = "cosine") -> list[tuple[str, float]]:
        """Return the k nearest vectors of a query as a database returns them, nearest first."""
        difference = self.vectors.astype(np.float64) - query.astype(np.float64)
        distances = np.sqrt(np.vecdot(difference, difference))
        order = np.argsort(distances, kind="stable")[:k]
        scores = METRICS[metric].scores(distances[order]).tolist()
        return [(self.items[row], score) for row, score in zip(order.tolist(), scores, strict=True)]


def unit(rows: np.ndarray) -> np.ndarray:
    """Return rows as float32 of length one."""
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


def shop(
    seed: int = 0,
    *,
    items: int = ITEMS,
    dim: int = DIM,
    largest: int = 12,
    noise: float = 0.7,
    numeric: bool = False,
    grouped: bool = True,
) -> Shop:
    """Return a shop: 1 to `largest` vectors of each item, in no order. Every fifth family of three items is a group."""
    generator = np.random.default_rng(seed)
    names = [str(number) if numeric else f"ä{number:x}" for number in generator.permutation(10 * items)[:items]]
    families = generator.normal(size=(1 + items // 3, dim))
    centres = families[np.arange(items) // 3] + generator.normal(size=(items, dim))
    sizes = generator.integers(1, largest + 1, items)
    of = generator.permutation(np.repeat(np.arange(items), sizes))
    vectors = unit(centres[of] + noise * generator.normal(size=(len(of), dim)))
    groups = [f"kind {item // 3}" if grouped and item // 3 % 5 == 0 else "" for item in of.tolist()]
    return Shop(vectors, [names[item] for item in of.tolist()], groups)


def queries_of(given: Shop, count: int, seed: int = 1) -> np.ndarray:
    """Return queries (count, d): near vectors of the shop, copies of them, and vectors of unknown items."""
    generator = np.random.default_rng(seed)
    rows = generator.integers(0, len(given.vectors), count)
    moved = (
        given.vectors[rows]
        + generator.normal(size=(count, given.vectors.shape[1]))
        * np.resize([0, 0.001, 0.1, 0.2, 0.4, 5], count)[:, None]
    )
    return unit(moved)


def measured(means: ItemMeans, query: np.ndarray, neighbours: list[tuple[str, float]]) -> Measured:
    """Return the item distances of neighbours with cosines."""
    exact = query.astype(np.float64) / np.linalg.norm(query.astype(np.float64))
    return measure_items(exact, listed(neighbours, METRICS["cosine"]), means, ItemDistance.default())


def means(given: Shop) -> ItemMeans:
    """Return the means of a shop."""
    return means_of(given.photos)


def promise_of(given: Shop, *, metric: str = "cosine", target_fpir: float = 0.05) -> Promise:
    """Return the promise of a shop."""
    return Promise.measure(given.vectors, given.items, groups=given.groups, metric=metric, target_fpir=target_fpir)
