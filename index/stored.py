"""The base of all snapshots: it reads photos by position from segments, and caches densities and filters."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .densities import Densities
from .distance import PLAIN, DistanceForm, Floats
from .filters import Value
from .segments import OpenSegment
from .verified import base_form

FILTERS = 32  # filters kept in the cache

Rows = NDArray[np.int64]
Part = TypeVar("Part")


@dataclass(frozen=True)
class Filter:
    """The photos that a search may return."""

    mask: NDArray[np.bool_]  # (n,)
    few: Rows | None  # positions of the passing photos, if there are few
    base: Any  # faiss selection that restricts a search of the base
    tail: Any
    sql: tuple[str, list[Value]]  # the filter as an SQL condition with its parameters
    confirmed: set[int] = field(default_factory=set)  # positions whose checksummed metadata has been tested, too


def by_part(parts: Sequence[Part], starts: Rows, positions: Rows) -> Iterator[tuple[Part, Rows, NDArray[np.bool_]]]:
    """Yield each part that contains some of the positions, the rows there, and the mask of these positions.

    `starts` holds the first position of each part, and the end.
    """
    of = starts.searchsorted(positions, side="right") - 1
    numbers = set(of.tolist())
    if len(numbers) == 1:
        (number,) = numbers
        yield parts[number], positions - starts[number], np.ones(len(positions), dtype=bool)
        return
    for number in numbers:
        inside = of == number
        yield parts[number], positions[inside] - starts[number], inside


@dataclass(frozen=True)
class Stored(ABC):
    """The photos of one version by position, in insertion order: n of them, live or removed."""

    version: int
    layout: int
    photos: int  # number of live photos
    item_count: int
    point: bytes | None  # the operating point that is kept with this version
    dim: int
    segments: Sequence[OpenSegment]
    seqs: Rows  # (n,) ascending
    items: NDArray[np.int32]  # (n,) item number of each photo
    live: NDArray[np.bool_]  # (n,)
    _densities: dict[str, tuple[Floats, float]] = field(default_factory=dict, init=False)
    _filters: dict[str, Filter] = field(default_factory=dict, init=False)
    _guard: threading.Lock = field(default_factory=threading.Lock, init=False)

    @abstractmethod
    def segment_at(self, position: int) -> int:
        """Return the number of the first segment that has photos from a position on."""

    @abstractmethod
    def by_position(self, values: Sequence[Floats], start: int = 0) -> Floats:
        """Return a value per photo from a position on, given those of each segment from `segment_at(start)` on."""

    @abstractmethod
    def by_segment(self, positions: Rows) -> Iterator[tuple[OpenSegment, Rows, NDArray[np.bool_]]]:
        """Yield each segment that contains some of the positions, its rows, and the mask of these positions."""

    @cached_property
    def fingerprint(self) -> tuple[int, int]:
        """The number of live photos and the sum of their seqs, which identify them."""
        return self.photos, int(self.seqs[self.live].sum())

    def densities(self, distance_form: DistanceForm, known: Densities) -> tuple[Floats, float]:
        """Return the density around each photo (n,), and their minimum; a verified form has those of its base form."""
        with self._guard:
            distance_form = base_form(distance_form)
            if distance_form.key not in self._densities:
                if distance_form is PLAIN:
                    values = np.zeros(len(self.seqs))
                else:
                    values = self.by_position([known.of(distance_form, self.segments)])
                self._densities[distance_form.key] = values, float(values.min(initial=np.inf))
            return self._densities[distance_form.key]

    def known_filter(self, key: str) -> Filter | None:
        """Return the cached filter for a key, or None."""
        with self._guard:
            return self._filters.get(key)

    def _keep_filter(self, key: str, new_filter: Filter) -> Filter:
        with self._guard:
            self._filters[key] = new_filter
            while len(self._filters) > FILTERS:
                del self._filters[next(iter(self._filters))]
        return new_filter

    def vectors(self, positions: Rows) -> NDArray[np.float32]:
        """Return the vectors (p, d) at some positions; raise GalleryCorrupt if one fails its checksum."""
        gathered = np.empty((len(positions), self.dim), dtype=np.float32)
        for segment, rows, inside in self.by_segment(positions):
            if len(rows) == len(positions):
                return segment.read(rows)
            gathered[inside] = segment.read(rows)
        return gathered

    def features(self, positions: Rows) -> list[bytes]:
        """Return the local features at some positions; raise GalleryCorrupt if some fail their checksum."""
        gathered: dict[int, bytes] = {}
        for segment, rows, inside in self.by_segment(positions):
            gathered |= dict(zip(positions[inside].tolist(), map(segment.read_features, rows.tolist()), strict=True))
        return [gathered[position] for position in positions.tolist()]

    def photos_at(self, positions: Rows) -> list[tuple[str, str, dict[str, Any]]]:
        """Return photo_id, item_id and metadata of the photos at some positions."""
        found: dict[int, tuple[str, str, dict[str, Any]]] = {}
        for segment, rows, inside in self.by_segment(positions):
            if len(rows) == len(positions):
                return segment.photos(rows)
            found |= zip(positions[inside].tolist(), segment.photos(rows), strict=True)
        return [found[position] for position in positions.tolist()]

    def photo(self, position: int) -> tuple[str, str, dict[str, Any]]:
        """Return photo_id, item_id and metadata of the photo at a position."""
        return self.photos_at(np.array([position]))[0]
