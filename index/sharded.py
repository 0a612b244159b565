"""Snapshots of a gallery that is divided into shards: one snapshot per shard, searched as one.

The nearest items of each shard are merged by distance, so answers are those of one gallery with the same photos.
Positions number the photos of all shards in insertion order. A *row* numbers them shard by shard.
Shapes: n photos of all shards, live or removed; d = embedding size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from index.ann.kinds import FLAT

from .distance import DistanceForm, Floats
from .filters import Value
from .segments import OpenSegment
from .snapshot import Snapshot
from .stored import Filter, Rows, Stored, by_part
from .verified import base_form


@dataclass(frozen=True)
class ShardedFilter(Filter):
    """The photos that a search may return, in all shards and in each of them."""

    parts: Sequence[Filter] = ()


@dataclass(frozen=True)
class ShardedSnapshot(Stored):
    """The photos of one version."""

    shards: Sequence[Snapshot]
    rows: Rows  # (n,) row of each position
    _densities_of: dict[str, list[tuple[Floats, float]]] = field(default_factory=dict, init=False)  # densities by form

    @classmethod
    def of(
        cls, shards: Sequence[Snapshot], *, version: int, layout: int, item_count: int, point: bytes | None
    ) -> ShardedSnapshot:
        """Return the shards of one version as one snapshot."""
        seqs = np.concatenate([shard.seqs for shard in shards])
        rows = np.argsort(seqs, kind="stable")
        return cls(
            version,
            layout,
            sum(shard.photos for shard in shards),
            item_count,
            point,
            shards[0].dim,
            [segment for shard in shards for segment in shard.segments],
            seqs[rows],
            np.concatenate([shard.items for shard in shards])[rows],
            np.concatenate([shard.live for shard in shards])[rows],
            shards,
            rows,
        )

    @cached_property
    def _starts(self) -> Rows:
        """The first row of each shard, and the end."""
        return np.cumsum([0, *(len(shard.seqs) for shard in self.shards)])

    @cached_property
    def _places(self) -> list[Rows]:
        """The position of each photo of each shard."""
        positions = np.empty(len(self.rows), dtype=np.int64)
        positions[self.rows] = np.arange(len(self.rows))
        return np.split(positions, self._starts[1:-1])

    @property
    def kind(self) -> str:
        """The kind of the indexes in use; if they differ, as in galleries of earlier releases, that of the first."""
        return next((shard.kind for shard in self.shards if shard.photos), FLAT)

    @property
    def scanned_photos(self) -> int:
        """The number of photos outside the indexes."""
        return sum(shard.scanned_photos for shard in self.shards)

    def segment_at(self, position: int) -> int:  # noqa: ARG002
        """Return 0: every segment may have photos from a position on."""
        return 0

    def by_position(self, values: Sequence[Floats], start: int = 0) -> Floats:
        """Return a value per photo from a position on, given those of each segment."""
        return np.concatenate([np.zeros(0), *values])[self.rows[start:]]

    def filter(self, key: str, passing: Rows, sql: tuple[str, list[Value]]) -> Filter:
        """Return the filter for the live photos whose seqs are in `passing`, and cache it under `key`."""
        rows = self.rows[np.searchsorted(self.seqs, passing)]
        parts = [
            shard.filter(key, shard.seqs[some], sql) for shard, some in zip(self.shards, self._split(rows), strict=True)
        ]
        mask = np.concatenate([part.mask for part in parts])[self.rows]
        return self._keep_filter(key, ShardedFilter(mask, None, None, None, sql, parts=parts))

    def _filters_of(self, only: Filter) -> Sequence[Filter]:
        """Return the filter of each shard; a filter of draws lists the few positions that pass."""
        if isinstance(only, ShardedFilter):
            return only.parts
        few = np.arange(len(self.rows)) if only.few is None else only.few
        few = few[only.mask[few]]
        parts = []
        for shard, some in zip(self.shards, self._split(np.sort(self.rows[few])), strict=True):
            mask = np.zeros(len(shard.seqs), dtype=bool)
            mask[some] = True
            parts.append(Filter(mask, some, None, None, only.sql))
        return parts

    def _split(self, rows: Rows) -> list[Rows]:
        """Return the rows of each shard, numbered from its first row."""
        return [
            rows[(rows >= start) & (rows < stop)] - start
            for start, stop in zip(self._starts[:-1], self._starts[1:], strict=True)
        ]

    def by_segment(self, positions: Rows) -> Iterator[tuple[OpenSegment, Rows, NDArray[np.bool_]]]:
        """Yield each segment that contains some of the positions, its rows, and the mask of these positions."""
        for shard, rows, inside in by_part(self.shards, self._starts, self.rows[positions]):
            places = np.flatnonzero(inside)
            for segment, segment_rows, chosen in shard.by_segment(rows):
                mask = np.zeros(len(positions), dtype=bool)
                mask[places[chosen]] = True
                yield segment, segment_rows, mask

    def nearest(
        self,
        vectors: NDArray[np.float32],
        k: int,
        distance_form: DistanceForm,
        densities: tuple[Floats, float],
        *,
        only: Filter | None = None,
        within: float | None = None,
    ) -> list[list[tuple[int, float]]]:
        """Return position and distance of the k nearest items, by their nearest photo, for unit vectors (n, d).

        With `within`, only the nearest item and the items up to that distance are guaranteed.
        """
        filters: Sequence[Filter | None] = [None] * len(self.shards) if only is None else self._filters_of(only)
        found: list[list[tuple[float, int]]] = [[] for _ in vectors]
        for shard, some, around, places in zip(
            self.shards, filters, self.around(distance_form, densities), self._places, strict=True
        ):
            answers = shard.nearest(vectors, k, distance_form, around, only=some, within=within)
            for merged, best in zip(found, answers, strict=True):
                merged += [(distance, int(places[row])) for row, distance in best]
        return [[(position, distance) for distance, position in sorted(merged)[:k]] for merged in found]

    def around(self, distance_form: DistanceForm, densities: tuple[Floats, float]) -> list[tuple[Floats, float]]:
        """Return the densities around the photos of each shard, with the minimum of all."""
        key = base_form(distance_form).key
        if self._densities.get(key) is not densities:
            return [(densities[0][places], densities[1]) for places in self._places]
        if key not in self._densities_of:
            self._densities_of[key] = [(densities[0][places], densities[1]) for places in self._places]
        return self._densities_of[key]


Version = Snapshot | ShardedSnapshot


def shards_of(version: Version) -> Sequence[Snapshot]:
    """Return the snapshots of the shards: the only one of a gallery that is not divided."""
    return version.shards if isinstance(version, ShardedSnapshot) else [version]
