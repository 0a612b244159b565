"""One version of a gallery, ready to search: immutable, so that any number of threads may share it.

Photos stand at positions, in the order of adding. An index covers the older ones (the base), the newer ones are scanned
(the tail), removed ones are passed over.
Shapes: n photos in force, live or removed; d = embedding size.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.ann.candidates import Candidates
from index.ann.kinds import APPROXIMATE

from .densities import Densities
from .distance import PLAIN, Floats, Measure, squared_distance
from .filters import Value
from .segments import OpenSegment

FIRST_FETCH = 16  # candidate photos fetched at first beyond one and a half times those that k items have
MOST_FETCHED = 4096  # at first: an item may have very many photos
SCANNED = 20_000  # photos that pass a filter, up to which they are all compared
FILTERS = 32  # that are kept ready
BLOCK = 4096  # photos read at a time
PAIRS = 512  # of queries and candidates that are compared at a time: they stay in the cache

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Neighbour:
    """An item near a query, by its nearest photo."""

    item_id: str
    photo_id: str
    distance: float
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredPhoto:
    """A photo as the gallery holds it."""

    photo_id: str
    item_id: str
    metadata: dict[str, Any]
    vector: NDArray[np.float32]  # (d,)


@dataclass(frozen=True)
class Base:
    """An index over photos, by their numbers."""

    candidates: Candidates
    seqs: Rows  # (b,) ascending
    name: str  # of its file, "" where it lives in memory alone


@dataclass(frozen=True)
class Filter:
    """The photos that may answer."""

    mask: NDArray[np.bool_]  # (n,)
    few: Rows | None  # their positions, where they are few
    base: Any  # what confines a search of the base to them
    tail: Any
    sql: tuple[str, list[Value]]  # what is true of their metadata
    confirmed: set[int] = field(default_factory=set)  # positions whose own metadata has been asked, too


@dataclass(frozen=True)
class Snapshot:
    """The photos of one version."""

    version: int
    layout: int
    photos: int  # live ones
    item_count: int
    segments: list[OpenSegment]
    seqs: Rows  # (n,) ascending
    items: NDArray[np.int32]  # (n,) number of each photo's item
    live: NDArray[np.bool_]  # (n,)
    base: Base | None
    base_positions: NDArray[np.integer]  # (b,) of the base's photos, -1 where one is no longer in force
    tail: Candidates
    tail_start: int  # the first position that is not of the base
    _densities: dict[str, tuple[Floats, float]] = field(default_factory=dict)
    _filters: dict[str, Filter] = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def _starts(self) -> list[int]:
        """Where each segment begins, and the end."""
        return [0, *accumulate(len(segment.seqs) for segment in self.segments)]

    def densities(self, measure: Measure, known: Densities) -> tuple[Floats, float]:
        """Return the density around each photo (n,), and the least of them."""
        with self._guard:
            if measure.key not in self._densities:
                made = np.zeros(len(self.seqs)) if measure is PLAIN else known.of(measure, self.segments)
                self._densities[measure.key] = made, float(made.min(initial=np.inf))
            return self._densities[measure.key]

    def filter(self, key: str, passing: Rows, sql: tuple[str, list[Value]]) -> Filter:
        """Return the filter for live photos whose seqs are `passing`, by `sql`; it is kept under `key`."""
        mask = np.zeros(len(self.seqs), dtype=bool)
        mask[np.searchsorted(self.seqs, passing)] = True
        mask &= self.live
        few = np.flatnonzero(mask) if int(mask.sum()) <= SCANNED else None
        base = None
        if few is None and self.base is not None:
            known = self.base_positions >= 0
            base = self.base.candidates.selection(np.where(known, mask[self.base_positions], False))
        tail = None if few is not None else self.tail.selection(mask[self.tail_start :])
        made = Filter(mask, few, base, tail, sql)
        with self._guard:
            self._filters[key] = made
            while len(self._filters) > FILTERS:
                del self._filters[next(iter(self._filters))]
        return made

    def known_filter(self, key: str) -> Filter | None:
        """Return a filter that was made before."""
        with self._guard:
            return self._filters.get(key)

    def vectors(self, positions: Rows) -> NDArray[np.float32]:
        """Return the vectors (p, d) at some positions; GalleryCorrupt where one is not what was written."""
        if len(self.segments) == 1:
            return self.segments[0].read(positions)
        found = np.empty((len(positions), self.tail.dim), dtype=np.float32)
        for segment, rows, mine in self._by_segment(positions):
            found[mine] = segment.read(rows)
        return found

    def _by_segment(self, positions: Rows) -> Iterator[tuple[OpenSegment, Rows, NDArray[np.bool_]]]:
        """Yield each segment that some positions are of, its rows, and which of the positions these are."""
        of = np.searchsorted(self._starts, positions, side="right") - 1
        for number in set(of.tolist()):
            mine = of == number
            yield self.segments[number], positions[mine] - self._starts[number], mine

    def photo(self, position: int) -> tuple[str, str, dict[str, Any]]:
        """Return photo_id, item_id and metadata of a position."""
        number = bisect_right(self._starts, position) - 1
        return self.segments[number].photo(position - self._starts[number])

    def neighbour(self, position: int, distance: float) -> Neighbour:
        """Return the photo at a position as an answer."""
        photo_id, item_id, metadata = self.photo(position)
        return Neighbour(item_id, photo_id, distance, metadata)

    def blocks(self, positions: Rows) -> Iterator[NDArray[np.float32]]:
        """Yield the vectors at some positions, a block at a time."""
        if len(positions) > BLOCK:
            for segment, rows, _ in self._by_segment(positions):
                segment.check(rows)  # together: many of them are hashed faster than block by block
        for start in range(0, len(positions), BLOCK):
            yield self.vectors(positions[start : start + BLOCK])

    def nearest(
        self,
        vectors: NDArray[np.float32],
        k: int,
        measure: Measure,
        densities: tuple[Floats, float],
        *,
        only: Filter | None = None,
        within: float | None = None,
        skip: Rows | None = None,
    ) -> list[list[tuple[int, float]]]:
        """Return, for unit vectors (n, d), position and distance of the k nearest items, each by its nearest photo.

        Candidates are fetched until no other photo could be nearer. With `within` it is enough to be sure of the
        nearest item, and of all up to that distance: fewer than k come back then. The photo at `skip` (n,) is left
        out.
        """
        answers: list[list[tuple[int, float]]] = [[] for _ in vectors]
        own = measure.densities(vectors)
        fetch = min(FIRST_FETCH + int(1.5 * k * self.photos / max(1, self.item_count)), MOST_FETCHED)
        if within is not None and self.base is not None and self.base.candidates.kind in APPROXIMATE:
            fetch = min(fetch, 2 * FIRST_FETCH)  # few photos match as a rule, and asking again costs little
        waiting = list(range(len(vectors)))
        while waiting:
            together = max(1, PAIRS // fetch)
            asked, waiting = [waiting[start : start + together] for start in range(0, len(waiting), together)], []
            for chosen in asked:
                found = self._compared(vectors[chosen], own[chosen], fetch, measure, densities, only)
                for query, (positions, distances, limit) in zip(chosen, found, strict=True):
                    best = self._by_item(positions, distances, k, limit, -1 if skip is None else int(skip[query]))
                    answers[query] = best
                    enough = len(best) == k or (best and within is not None and limit > within)
                    if not enough and limit < np.inf:
                        waiting.append(query)
            fetch *= 4
        return answers

    def _compared(
        self,
        vectors: NDArray[np.float32],
        own: Floats,
        fetch: int,
        measure: Measure,
        densities: tuple[Floats, float],
        only: Filter | None,
    ) -> Iterator[tuple[Rows, Floats, float]]:
        """Yield, for each query, likely photos, their distances, and one that no other photo is nearer than."""
        around, sparsest = densities
        found, cosines = self._candidates(vectors, fetch, only)
        there = found >= 0
        counts = there.sum(axis=1)
        positions, queries = found[there], np.repeat(np.arange(len(vectors)), counts)
        squared = squared_distance(vectors[queries] if len(vectors) > 1 else vectors, self.vectors(positions))
        distances = measure.transform(squared, own[queries], around[positions])
        limits = measure.transform(np.clip(2 - 2 * cosines, 0, 4), own, sparsest)
        limits = np.where(cosines > -np.inf, limits, np.inf)
        stops = np.cumsum(counts)
        for start, stop, limit in zip((stops - counts).tolist(), stops.tolist(), limits.tolist(), strict=True):
            yield positions[start:stop], distances[start:stop], limit

    def _by_item(self, positions: Rows, distances: Floats, k: int, limit: float, skip: int) -> list[tuple[int, float]]:
        """Return the nearest photo of each of the k nearest items, as far as they are nearer than the limit."""
        order = np.lexsort((positions, distances))  # equal distances in the order of adding
        seen: set[int] = set()
        best: list[tuple[int, float]] = []
        positions = positions[order]
        found = zip(self.items[positions].tolist(), positions.tolist(), distances[order].tolist(), strict=True)
        for item, position, distance in found:
            if distance >= limit or len(best) == k:
                break
            if item not in seen and position != skip:
                seen.add(item)
                best.append((position, distance))
        return best

    def _candidates(self, vectors: NDArray[np.float32], fetch: int, only: Filter | None) -> tuple[Rows, Floats]:
        """Return positions of likely photos (n, m), -1 where there are no more, and a cosine (n,) for each query.

        No other photo's cosine exceeds it: -inf where there is no other.
        """
        if only is not None and only.few is not None:
            return self._scanned(vectors, fetch, only.few)
        least = np.full(len(vectors), -np.inf)
        parts = []
        for candidates, selection, to_position in (
            (self.base.candidates if self.base else None, only.base if only else None, self.base_positions),
            (self.tail if self._tail_lives else None, only.tail if only else None, None),
        ):
            if candidates is None:
                continue
            rows, cosines = candidates.search(vectors, fetch, selection)
            known = rows >= 0
            positions = rows + self.tail_start if to_position is None else to_position[rows]
            parts.append(np.where(known, positions, -1))
            if rows.shape[1] == fetch < len(candidates):
                last = cosines[:, -1].astype(np.float64) + 2 * candidates.slack
                least = np.where(known[:, -1], np.maximum(least, last), least)
        if not parts:
            return np.zeros((len(vectors), 0), np.int64), least
        positions = np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]
        return np.where((positions >= 0) & self.live[positions], positions, -1), least

    def _scanned(self, vectors: NDArray[np.float32], fetch: int, few: Rows) -> tuple[Rows, Floats]:
        """Do the same by comparison with the photos at some positions."""
        if fetch >= len(few):
            return np.tile(few, (len(vectors), 1)), np.full(len(vectors), -np.inf)
        cosines = np.concatenate([vectors @ block.T for block in self.blocks(few)], axis=1)
        first = np.argpartition(-cosines, fetch, axis=1)
        after = np.take_along_axis(cosines, first[:, fetch : fetch + 1], axis=1)[:, 0]
        return few[first[:, :fetch]], after.astype(np.float64) + 2 * self.tail.slack

    @cached_property
    def _tail_lives(self) -> bool:
        """Whether there is a live photo that is not of the base."""
        return bool(self.live[self.tail_start :].any())
