"""Neighbours: what a search of a gallery returns, and the search that is the same for every store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice
from math import isnan
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from index.checks import check_vectors
from index.errors import InvalidParameter
from index.photos import NONE, Photos

from .details import Verifier
from .item_distance import NEAREST_PHOTO, ItemDistance
from .item_search import ItemSearch
from .tables import Table

PhotosAt = Callable[[NDArray[np.int64]], list[tuple[str, str, dict[str, Any]]]]  # `Photos.photos_at`


@dataclass(frozen=True, slots=True)
class Neighbour:
    """An item near a query, with its nearest photo."""

    item_id: str
    photo_id: str
    distance: float
    metadata: dict[str, Any] = field(default_factory=dict)
    photo_distance: float = 0.0  # plain distance to the nearest photo
    mean_distance: float | None = None  # plain distance to the mean of the item's photos, if it was looked at
    inliers: int = 0  # local features that agree with one of the item's photos


class VersionNeighbours(NamedTuple):
    """The neighbours of queries in one version of a gallery."""

    version: int
    point: bytes | None  # what the version keeps as its operating point
    neighbours: list[list[Neighbour]]  # of each query
    photos: Any  # of the version, as `snapshot` of the gallery returns them


class Version(NamedTuple):
    """One version of a gallery, for one search."""

    number: int
    point: bytes | None  # what the version keeps as its operating point
    photos: Photos
    only: Any  # the restriction of a filter, in the way of `photos`
    photos_at: PhotosAt


@dataclass(frozen=True)
class StoredPhoto:
    """A photo stored in the gallery."""

    photo_id: str
    item_id: str
    metadata: dict[str, Any]
    vector: NDArray[np.float32]  # (d,)
    features: bytes | None = None  # local features, if they were asked for and the gallery keeps them
    thumbnail: bytes | None = None  # JPEG, if it was asked for


class Searched(ABC):
    """Base of the galleries that can be searched: local galleries, and galleries on a cluster."""

    dim: int  # of the vectors

    def search(
        self,
        vectors: ArrayLike,
        k: int,
        *,
        where: str | None = None,
        item_distance: ItemDistance = NEAREST_PHOTO,
        verifier: Verifier | None = None,
        features: Sequence[bytes] | None = None,
    ) -> list[list[Neighbour]]:
        """Return the k nearest items for each of the vectors (n, d), best first.

        Distances are exact. Fewer than k items are returned only if the gallery has no more.

        Parameters
        ----------
        where:
            Filter over declared columns, such as "brand = 'x' and price < 10" (`index.search.filters`). It is applied
            before the nearest k are taken.
        item_distance:
            Constants of the item distance (`index.search.item_distance`). By default, an item is as far as its nearest
            photo.
        verifier, features:
            Compares local features, and those of each query.
        """
        return self.search_version(
            vectors, k, where=where, item_distance=item_distance, verifier=verifier, features=features
        ).neighbours

    def search_version(
        self,
        vectors: ArrayLike,
        k: int,
        *,
        where: str | None = None,
        item_distance: ItemDistance = NEAREST_PHOTO,
        verifier: Verifier | None = None,
        features: Sequence[bytes] | None = None,
        left_out: Collection[str] = (),
    ) -> VersionNeighbours:
        """Search as `search` does, and also return the version and what is kept as its operating point.

        The search goes on as if the photos with the ids `left_out` were not there; it cannot have a filter too.
        """
        if k < 1:
            raise InvalidParameter("k", "be at least 1", k)
        unit = check_vectors(vectors, self.dim)
        with self._searching(where, left_out) as now:
            table = ItemSearch(now.photos, item_distance, verifier).nearest(unit, k, only=now.only, features=features)
            return VersionNeighbours(now.number, now.point, neighbours_of(table, now.photos_at), now.photos)

    @abstractmethod
    def _searching(self, where: str | None, left_out: Collection[str]) -> AbstractContextManager[Version]:
        """Return the newest version, restricted by a filter or without some photos, for one search."""


def neighbours_of(table: Table, photos_at: PhotosAt) -> list[list[Neighbour]]:
    """Return the items of a table as search results of each query.

    `photos_at` returns photo_id, item_id and metadata of some positions. It is called once for all queries.
    """
    there = table.positions != NONE
    photos = photos_at(table.positions[there])
    columns = (table.distances, table.nearest, table.mean, table.inliers)
    numbers = zip(*(values[there].tolist() for values in columns), strict=True)
    neighbours = (
        Neighbour(item, photo, distance, metadata, nearest, None if isnan(to_mean) else to_mean, inliers)
        for (photo, item, metadata), (distance, nearest, to_mean, inliers) in zip(photos, numbers, strict=True)
    )
    return [list(islice(neighbours, count)) for count in there.sum(axis=1).tolist()]
