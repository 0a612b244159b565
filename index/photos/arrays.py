"""Photos in memory: vectors in an array, searched exactly. The smallest implementation of `index.photos.Photos`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from index.errors import GalleryError, InvalidParameter
from index.groups import GROUP, number_of
from index.search.details import Points, Verifier
from index.search.distance import exact_unit, rounding
from index.search.exact import first_of_items, pair_squares
from index.search.item_distance import mean_photo

from . import NONE, Floats, ItemFacts, Keys, Rows, Whole, hashed, sampled

COMPARED = 2**24  # cosines that are computed at a time
KEPT = 2**24  # numbers of mean photos that are kept
LENGTH = 1e-3  # largest difference between a vector's length and one


class ArrayPhotos(Whole):
    """Photos as vectors with item ids. Positions are rows, and item numbers are ranks of the ids.

    Parameters
    ----------
    vectors:
        Vectors of n photos (n, d) of length one, as float32. They are not copied.
    item_ids:
        The item of each photo (n,).
    photo_ids:
        Ids of the photos, their row numbers by default. They decide which photos a sample holds.
    groups:
        Group of each photo's item, "" for none (n,). Items of one group are no rivals.
    features:
        Local features of each photo (n,), where these are compared.

    Raises
    ------
    InvalidParameter
        If vectors are not of length one, arrays have unequal lengths, or photo ids repeat.
    """

    def __init__(
        self,
        vectors: NDArray[np.float32],
        item_ids: ArrayLike,
        *,
        photo_ids: Sequence[str] | None = None,
        groups: Sequence[str] | None = None,
        features: Sequence[bytes] = (),
    ) -> None:
        """Check and keep the arrays."""
        items = np.asarray(item_ids, dtype=str)
        self.photo_ids = [str(row) for row in range(len(vectors))] if photo_ids is None else photo_ids
        each = {"item_ids": items, "photo_ids": self.photo_ids, "groups": groups, "features": features or None}
        _check(vectors, {name: values for name, values in each.items() if values is not None})
        self._vectors = vectors
        self.item_ids, self.items = np.unique(items, return_inverse=True)
        self._groups, self._features = groups, features
        self._order = np.argsort(self.items, kind="stable")  # rows, item by item
        self._starts = np.searchsorted(self.items[self._order], np.arange(len(self.item_ids)))
        self._facts: dict[int, tuple[Floats, int]] = {}

    def regrouped(self, groups: Mapping[str, str]) -> ArrayPhotos:
        """Return the same photos with other groups of some items, by item id. The vectors are not copied."""
        old = self._groups or [""] * self.size
        items = self.item_ids[self.items]
        new = [groups.get(item, group) for item, group in zip(items.tolist(), old, strict=True)]
        return ArrayPhotos(self._vectors, items, photo_ids=self.photo_ids, groups=new, features=self._features)

    @property
    def size(self) -> int:
        """The number of photos."""
        return len(self._vectors)

    @property
    def item_count(self) -> int:
        """The number of items."""
        return len(self.item_ids)

    @property
    def mark(self) -> tuple[int, ...]:
        """The number of photos: arrays do not change."""
        return (self.size,)

    def changes_since(self, mark: Sequence[int]) -> int:
        """Return the difference in the number of photos."""
        return abs(self.size - mark[0])

    def nearest(self, vectors: NDArray[np.float32], k: int, *, only: Any = None) -> tuple[Rows, Floats]:
        """Return the nearest photo of each of the k nearest items; `only` is a mask (n,) of the photos to search."""
        exact, together = exact_unit(vectors), max(1, COMPARED // max(1, self.size))
        found = [np.zeros((0, k), np.int64)], [np.zeros((0, k))]
        for start in range(0, len(vectors), together):
            some = slice(start, start + together)
            rows, photos = self._contenders(vectors[some], k, only)
            distances = np.sqrt(pair_squares(exact[some], self.vectors, rows, photos))
            places, apart, _ = first_of_items(rows, self.items[photos], photos, distances, (len(exact[some]), k))
            found[0].append(places)
            found[1].append(apart)
        return np.concatenate(found[0]), np.concatenate(found[1])

    def _contenders(self, vectors: NDArray[np.float32], k: int, only: Any) -> tuple[Rows, Rows]:
        """Return pairs (p,) of a query and a photo, among them the nearest photo of each of its k nearest items."""
        cosines = (vectors @ self._vectors.T)[:, self._order]
        if only is not None:
            cosines[:, ~only[self._order]] = -np.inf
        best = np.maximum.reduceat(cosines, self._starts, axis=1) if self.size else cosines
        reach = np.full(len(vectors), -np.inf) if k >= best.shape[1] else np.partition(best, -k, axis=1)[:, -k]
        slack = 2 * rounding(vectors.shape[1])
        least = np.where(best >= reach[:, None] - slack, best, np.inf) - slack  # cosine of an item's nearest photo
        counts = np.diff(self._starts, append=self.size)
        rows, places = ((cosines >= np.repeat(least, counts, axis=1)) & (cosines > -np.inf)).nonzero()
        return rows, self._order[places]

    def items_at(self, positions: Rows) -> Rows:
        """Return the numbers of the items of photos."""
        return np.where(positions == NONE, NONE, self.items[positions]) if self.size else positions

    def photos_of(self, items: Sequence[int]) -> list[Rows]:
        """Return the positions of the photos of items, ascending."""
        stops = np.append(self._starts[1:], self.size)
        return [self._order[self._starts[item] : stops[item]] for item in items]

    def facts_of(self, items: Rows) -> ItemFacts:
        """Return the mean photos and groups of items."""
        if len(self._facts) * self._vectors.shape[1] > KEPT:
            self._facts.clear()
        for item in set(items.tolist()) - self._facts.keys():
            (own,) = self.photos_of([item])
            group = "" if self._groups is None else self._groups[own[0]]
            number = number_of(str(self.item_ids[item]), {GROUP: group})
            self._facts[item] = mean_photo(self.vectors(own)), number
        facts = [self._facts[item] for item in items.tolist()]
        means = np.array([mean for mean, _ in facts]).reshape(len(facts), self._vectors.shape[1])
        return ItemFacts(means, np.array([number for _, number in facts], dtype=np.int64))

    def vectors(self, positions: Rows) -> NDArray[np.float32]:
        """Return the vectors at positions."""
        return np.asarray(self._vectors[positions])

    def photos_at(self, positions: Rows) -> list[tuple[str, str, dict[str, Any]]]:
        """Return photo_id, item_id and metadata of photos."""
        groups = ["" if self._groups is None else self._groups[row] for row in positions.tolist()]
        ids, items = [self.photo_ids[row] for row in positions.tolist()], self.item_ids[self.items[positions]].tolist()
        return [(*names, {GROUP: group} if group else {}) for *names, group in zip(ids, items, groups, strict=True)]

    def positions(self, photo_ids: Sequence[str]) -> Rows:
        """Return the rows of photos."""
        rows = {photo_id: row for row, photo_id in enumerate(self.photo_ids)}
        return np.array([rows.get(photo_id, NONE) for photo_id in photo_ids], dtype=np.int64)

    def item_numbers(self, item_ids: Sequence[str]) -> dict[str, int]:
        """Return the numbers of the items that are here."""
        places = np.searchsorted(self.item_ids, np.asarray(item_ids, dtype=str)).tolist()
        pairs = zip(item_ids, places, strict=True)
        return {item: n for item, n in pairs if n < len(self.item_ids) and self.item_ids[n] == item}

    def keys_of(self, positions: Rows) -> Keys:
        """Return the hashes of the photo ids."""
        return hashed(self.photo_ids[row] for row in positions.tolist())

    def sample(self, most: int, *, excluded: Collection[int] = ()) -> Rows:
        """Return a sample of positions."""
        rows = np.flatnonzero(~np.isin(self.items, list(excluded)))
        items = self.items[rows]
        return rows[sampled(items, hashed(self.item_ids.tolist())[items], self.keys_of(rows))[:most]]

    def copies(self, first: Rows, second: Rows) -> NDArray[np.bool_]:
        """Return whether photos have equal vectors."""
        return np.asarray((self.vectors(first) == self.vectors(second)).all(axis=1))

    def features(self, positions: Rows) -> list[bytes]:
        """Return the local features of photos."""
        if not self._features:
            raise GalleryError("these photos have no local features", remedy="Pass them to ArrayPhotos")
        return [self._features[row] for row in positions.tolist()]

    def votes(self, verifier: Verifier, asked: Points) -> tuple[Rows, Floats]:
        """Return the photos with votes, and their votes."""
        scores = self._lists(verifier).scores(asked, verifier.voting)
        voted = np.flatnonzero(scores > 0)
        return voted, scores[voted]

    def _lists(self, verifier: Verifier) -> Any:
        """Return the inverted lists of the photos' key points."""
        if verifier.voting.key not in self._inverted:
            from index.search.votes import InvertedLists, PhotoPoints

            points = PhotoPoints.of([verifier.points(content) for content in self.features(np.arange(self.size))])
            self._inverted[verifier.voting.key] = InvertedLists.of(points, verifier.voting)
        return self._inverted[verifier.voting.key]

    @cached_property
    def _inverted(self) -> dict[str, Any]:
        return {}


def _check(vectors: NDArray[np.float32], each: Mapping[str, Collection[Any]]) -> None:
    """Raise InvalidParameter unless vectors are of length one, with one value of each kind for every vector."""
    if vectors.ndim != 2 or vectors.dtype != np.float32:
        raise InvalidParameter("vectors", "be float32 (n, d)", f"{vectors.dtype} {vectors.shape}")
    is_unit = np.abs(np.sqrt(np.vecdot(vectors, vectors)) - 1) <= LENGTH  # False for NaN
    if not is_unit.all():
        remedy = "Divide each vector by its length"
        raise InvalidParameter("vectors", "be of length one", f"row {np.argmin(is_unit)}", remedy=remedy)
    for name, values in each.items():
        if len(values) != len(vectors):
            raise InvalidParameter(name, f"hold one value for each of the {len(vectors)} vectors", len(values))
    repeated = [name for name, count in Counter(each["photo_ids"]).most_common(1) if count > 1]
    if repeated:
        raise InvalidParameter("photo_ids", "differ", repeated[0])
