"""Vectors that were given, checked and of length one, with what a promise keeps of them.

Shapes: n vectors, q queries, u items, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from index.files import temporary_array
from index.groups import number_of
from index.photos import hashed
from index.photos.arrays import ArrayPhotos
from index.search.distance import exact_unit
from index.search.item_distance import mean_photo, photos_of_mean
from retrieval.errors import InvalidParameter, listed
from retrieval.measuring.draws import Draws, Probes

from .checks import (
    BLOCK,
    SHOWN,
    check_count,
    check_lengths,
    check_queries,
    checked_items,
    checked_vectors,
    warnings_of,
)
from .metric import Metric
from .neighbours import ItemMeans

EXACT = 1e-4  # largest difference from one of lengths that are not scaled
IN_MEMORY = 2**28  # bytes of scaled vectors that are kept in memory; more go to a temporary file
SAMPLED, BITS = 32, 64  # items of a fingerprint, and bits for each


@dataclass(frozen=True)
class GivenVectors:
    """Vectors (n, d) with items and groups."""

    photos: ArrayPhotos
    warnings: tuple[str, ...]

    @classmethod
    def checked(
        cls,
        vectors: ArrayLike,
        items: ArrayLike,
        *,
        metric: Metric,
        groups: ArrayLike | None = None,
        photo_ids: Sequence[str] | None = None,
    ) -> Self:
        """Check vectors, items and groups, and scale the vectors; raise where no number could be true."""
        array = checked_vectors(vectors)
        texts = checked_items(items, len(array))
        kinds = None if groups is None else checked_items(groups, len(array), "groups", may_be_empty=True)
        ids = [str(row) for row in range(len(array))] if photo_ids is None else [str(each) for each in photo_ids]
        if len(ids) != len(array):
            raise InvalidParameter("photo_ids", f"be one id for each of the {len(array):,} vectors", len(ids))
        norms = lengths(array)
        check_lengths(norms, metric, ids)
        check_count(texts, kinds)
        warnings = tuple(warnings_of(array, texts, ids))
        unit = scaled(array, norms)
        chosen = None if kinds is None else kinds.tolist()
        return cls(ArrayPhotos(unit, texts, photo_ids=ids, groups=chosen), warnings)

    def probes(self, queries: tuple[ArrayLike, ArrayLike]) -> Probes:
        """Return labelled queries, vectors and items; raise InvalidParameter for items that are not here."""
        if not isinstance(queries, tuple | list) or len(queries) != 2:
            raise InvalidParameter("queries", "be a pair of vectors and items", type(queries).__name__)
        vectors, items = queries
        array = checked_vectors(vectors, "queries")
        texts = checked_items(items, len(array), "queries", may_be_empty=True)
        dim = self.photos.vectors(np.zeros(1, np.int64)).shape[1]
        if array.shape[1] != dim:
            raise InvalidParameter("queries", f"have {dim} numbers each, as the vectors", array.shape[1])
        norms = lengths(array)
        check_queries(norms, "queries")
        known = self.photos.item_numbers(np.unique(texts).tolist())
        strange = sorted({item for item in texts.tolist() if item and item not in known})
        if strange:
            raise InvalidParameter(
                "queries",
                "name items of the collection, or no item (an empty id) for unknown ones",
                listed(strange[:SHOWN]),
                remedy="Write an empty id where a photo shows no item of the collection",
            )
        return Probes(scaled(array, norms), [f"query {row}" for row in range(len(array))], texts.tolist())


def lengths(vectors: NDArray[Any]) -> NDArray[np.float64]:
    """Return the lengths of vectors (n,), NaN or inf for those with such numbers."""
    norms = np.empty(len(vectors))
    for rows in _blocks(len(vectors)):
        block = np.asarray(vectors[rows], dtype=np.float64)
        with np.errstate(all="ignore"):
            norms[rows] = np.sqrt(np.vecdot(block, block))
    return norms


def scaled(vectors: NDArray[Any], norms: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return vectors of length one, as float32: the same array if it is so already, a mapped one if it is large."""
    if vectors.dtype == np.float32 and (np.abs(norms - 1) <= EXACT).all():
        return vectors
    size = 4 * vectors.size
    unit = np.empty(vectors.shape, np.float32) if size <= IN_MEMORY else temporary_array(vectors.shape)
    for rows in _blocks(len(vectors)):
        unit[rows] = np.asarray(vectors[rows], dtype=np.float64) / norms[rows, None]
    return unit


def means_of(photos: ArrayPhotos) -> ItemMeans:
    """Return the means of all items, rounded to float16 as files keep them."""
    means = np.empty((photos.item_count, photos.vectors(np.zeros(1, np.int64)).shape[1]), np.float32)
    cosines, groups = np.empty(len(means), np.float32), np.empty(len(means), np.int64)
    for number, own in enumerate(photos.photos_of(range(len(means)))):
        vectors = photos.vectors(own)
        mean = mean_photo(vectors)
        means[number] = mean.astype(np.float16)
        cosines[number] = (exact_unit(photos_of_mean(vectors)) @ mean).mean()
        ((_, item, metadata),) = photos.photos_at(own[:1])
        groups[number] = number_of(item, metadata)
    return ItemMeans(photos.item_ids, means, groups, cosines)


def merged(photos: ArrayPhotos, pairs: Sequence[tuple[str, str]]) -> ArrayPhotos:
    """Return photos in which the items of each pair have one group, so that they are no rivals."""
    return photos.regrouped({item: f"pair {n}" for n, pair in enumerate(pairs) for item in pair})


def largest_gap(own: Draws, means: ItemMeans, photos: ArrayPhotos) -> float:
    """Return how much nearer, as a cosine, the nearest photo of an unknown item's match is than the average photo."""
    usable = own.where((own.nearest_items != "") & ~own.is_copied)
    items = np.array([means.numbers[item] for item in usable.nearest_items.tolist()], dtype=np.int64)
    places = np.split(photos.positions([*usable.ids.tolist(), *usable.nearest.tolist()]), 2)
    largest = 0.0
    for rows in _blocks(len(items)):
        queries, nearest = (photos.vectors(each[rows]) for each in places)
        averages = np.vecdot(queries, means.means[items[rows]]) * means.cosines[items[rows]]
        largest = float((np.vecdot(queries, nearest) - averages).max(initial=largest))
    return largest


def fingerprint(means: ItemMeans) -> dict[str, str]:
    """Return bits of the means of some items, by a hash of the item id. Those of another model differ in half of them.

    Each bit tells which of two numbers of the mean is greater. The bits of a mean say little about the mean.
    """
    keys = hashed(means.ids.tolist())
    dim = means.means.shape[1]
    digest = b"".join(blake2b(bytes([n]), digest_size=8).digest() for n in range(BITS))
    first, second = (np.frombuffer(digest, dtype="<u4").reshape(BITS, 2) % dim).T
    rows = np.argsort(keys, kind="stable")[:SAMPLED]
    bits = means.means[rows][:, first] > means.means[rows][:, second]
    return {f"{keys[row]:016x}": np.packbits(each).tobytes().hex() for row, each in zip(rows, bits, strict=True)}


def is_of_another_model(before: dict[str, str], means: ItemMeans) -> bool:
    """Return whether the means of the items of a fingerprint differ too much for vectors of one model."""
    keys = [f"{key:016x}" for key in hashed(means.ids.tolist()).tolist()]
    rows = [row for row, key in enumerate(keys) if key in before]
    if not rows:
        return False
    now = fingerprint(ItemMeans(means.ids[rows], means.means[rows], means.groups[rows], means.cosines[rows]))
    apart = [(int(bits, 16) ^ int(before[key], 16)).bit_count() for key, bits in now.items()]
    return float(np.median(apart)) > BITS / 4


def _blocks(count: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK) for start in range(0, count, BLOCK))
