"""Immutable snapshots of one gallery version, searchable from any number of threads.

Positions number the photos in insertion order. The index covers the older photos (the base), newer ones are scanned
(the tail), and removed ones are skipped.
Shapes: n photos, live or removed; d = embedding size.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.ann.candidates import Candidates
from index.ann.kinds import APPROXIMATE, FLAT, FP16, IVFPQ

from .contenders import contenders
from .distance import DistanceForm, Floats, Queries, squared_from
from .filters import Value
from .segments import OpenSegment
from .stored import Filter, Rows, Stored, by_part
from .sweep import MANY, sweep

FIRST_FETCH = 16  # candidate photos in the first fetch, in addition to 1.5 times the average number for k items
FURTHER = 6  # items beyond the distance of interest that a search returns at most
MOST_FETCHED = 4096  # upper bound of the first fetch: an item may have very many photos
SCANNED = 20_000  # a filter that passes up to this many photos is searched exhaustively
BLOCK = 4096  # photos per read
PAIRS = 512  # query-candidate pairs compared at a time; they fit in the CPU cache
FEW = 64  # up to so many candidates of a query are all compared: bounds of their distances would take longer
FETCHED = 2**18  # candidates fetched at a time, for all queries together

Within = float | Callable[[bytes | None], float] | None  # a distance, or a function of the kept operating point


@dataclass(frozen=True)
class Base:
    """An index over photos, identified by seq."""

    candidates: Candidates
    seqs: Rows  # (b,) ascending
    name: str  # file name, "" for an index in memory


@dataclass(frozen=True)
class Proposed:
    """The candidates of n queries, up to m of each."""

    positions: Rows  # (n, m) padded with -1
    cosines: NDArray[np.float32]  # (n, m)
    slack: float  # maximum error of these cosines, inf if it is not known
    others: Floats  # (n,) upper bound for the cosine of any other photo, -inf if there is none

    def bounds(self) -> tuple[Floats, Floats]:
        """Return bounds of the squared distances (n, m)."""
        middle = 2 - 2 * self.cosines.astype(np.float64)
        return np.clip(middle - 2 * self.slack, 0, 4), np.clip(middle + 2 * self.slack, 0, 4)


@dataclass(frozen=True)
class Snapshot(Stored):
    """The photos of one version, or of one of its shards."""

    base: Base | None
    base_positions: NDArray[
        np.integer
    ]  # (b,) positions of the photos of the base, -1 for a photo that no longer exists
    tail: Candidates
    tail_start: int  # first position after the base

    @property
    def scanned_photos(self) -> int:
        """The number of photos outside the index."""
        return len(self.seqs) - self.tail_start

    @property
    def kind(self) -> str:
        """The kind of the index in use."""
        return self.base.candidates.kind if self.base is not None and self.base.name else FLAT

    @cached_property
    def _starts(self) -> list[int]:
        """Return the first position of each segment, and the end."""
        return [0, *accumulate(len(segment.seqs) for segment in self.segments)]

    def segment_at(self, position: int) -> int:
        """Return the number of the first segment with photos from a position on."""
        return bisect_right(self._starts, position) - 1

    def by_position(self, values: Sequence[Floats], start: int = 0) -> Floats:
        """Return a value per photo from a position on, given those of each segment from `segment_at(start)` on."""
        return np.concatenate([np.zeros(0), *values])[start - self._starts[self.segment_at(start)] :]

    def filter(self, key: str, passing: Rows, sql: tuple[str, list[Value]]) -> Filter:
        """Return the filter for the live photos whose seqs are in `passing`, and cache it under `key`."""
        mask = np.zeros(len(self.seqs), dtype=bool)
        mask[np.searchsorted(self.seqs, passing)] = True
        mask &= self.live
        few = np.flatnonzero(mask) if int(mask.sum()) <= SCANNED else None
        base = None
        if few is None and self.base is not None:
            known = self.base_positions >= 0
            base = self.base.candidates.selection(np.where(known, mask[self.base_positions], False))
        tail = None if few is not None else self.tail.selection(mask[self.tail_start :])
        return self._keep_filter(key, Filter(mask, few, base, tail, sql))

    def vectors(self, positions: Rows) -> NDArray[np.float32]:
        """Return the vectors (p, d) at some positions; raise GalleryCorrupt if one fails its checksum."""
        if len(self.segments) == 1:
            return self.segments[0].read(positions)
        return super().vectors(positions)

    def by_segment(self, positions: Rows) -> Iterator[tuple[OpenSegment, Rows, NDArray[np.bool_]]]:
        """Return each segment that contains some of the positions, its rows, and the mask of these positions."""
        return by_part(self.segments, self._starts, positions)

    def photos_at(self, positions: Rows) -> list[tuple[str, str, dict[str, Any]]]:
        """Return photo_id, item_id and metadata of the photos at some positions."""
        if len(self.segments) == 1:
            return self.segments[0].photos(positions)
        return super().photos_at(positions)

    def blocks(self, positions: Rows) -> Iterator[NDArray[np.float32]]:
        """Yield the vectors at some positions, one block at a time."""
        if len(positions) > BLOCK:
            self._check(positions)
        for start in range(0, len(positions), BLOCK):
            yield self.vectors(positions[start : start + BLOCK])

    def _check(self, positions: Rows) -> None:
        """Check the vectors at some positions, all at once, because this is faster than by block."""
        for segment, rows, _ in self.by_segment(positions):
            segment.check(rows)

    def nearest(
        self,
        vectors: NDArray[np.float32],
        k: int,
        distance_form: DistanceForm,
        densities: tuple[Floats, float],
        *,
        only: Filter | None = None,
        within: float | None = None,
        skip: Rows | None = None,
    ) -> list[list[tuple[int, float]]]:
        """Return position and distance of the k nearest items, by their nearest photo, for unit vectors (n, d).

        Candidates are fetched until no other photo can be nearer. A verified form counts as its base form
        (`VerifiedSearch` verifies). With `within`, only the nearest item and the items up
        to that distance are guaranteed; up to `FURTHER` items beyond it follow if they were found. `skip` (n,) holds
        one position per query to leave out of its result.
        """
        answers: list[list[tuple[int, float]]] = [[] for _ in vectors]
        queries = Queries.of(vectors, distance_form)
        further = 0 if within is None else FURTHER
        fetch = min(FIRST_FETCH + int(1.5 * k * self.photos / max(1, self.item_count)), MOST_FETCHED)
        if within is not None and self.base is not None and self.base.candidates.kind in APPROXIMATE:
            fetch = min(fetch, 2 * FIRST_FETCH)  # few photos match as a rule, and a second fetch is cheap
        waiting = list(range(len(vectors)))
        while waiting:
            together = max(1, FETCHED // fetch)
            groups, waiting = [waiting[start : start + together] for start in range(0, len(waiting), together)], []
            for chosen in groups:
                asked = queries if len(chosen) == len(vectors) else queries.at(chosen)
                skipped = None if skip is None else skip[chosen]
                candidates = self._compared(asked, fetch, k, distance_form, densities, only, skipped)
                for query, (positions, distances, limit) in zip(chosen, candidates, strict=True):
                    answers[query], sure = self._by_item(positions, distances, k, limit, further)
                    if sure < k and limit < np.inf and not (sure and within is not None and limit > within):
                        waiting.append(query)
            fetch *= 4
        return answers

    def _compared(
        self,
        queries: Queries,
        fetch: int,
        k: int,
        distance_form: DistanceForm,
        densities: tuple[Floats, float],
        only: Filter | None,
        skip: Rows | None,
    ) -> Iterator[tuple[Rows, Floats, float]]:
        """Yield for each query its candidates, their distances, and a lower bound for the distance of any other photo.

        The candidates include the nearest photo of each of the k nearest items that were found.
        """
        around, sparsest = densities
        found = self._candidates(queries.vectors, fetch, only)
        limits = distance_form.transform(
            np.minimum(np.maximum(2 - 2 * found.others, 0), 4), queries.densities, sparsest
        )
        limits = np.where(found.others > -np.inf, limits, np.inf)
        there = found.positions >= 0
        if skip is not None:
            there &= found.positions != skip[:, None]
        if there.shape[1] > FEW and found.slack < np.inf:
            of_photos = around[found.positions]
            of_queries = np.broadcast_to(queries.densities[:, None], of_photos.shape)
            bounds = [distance_form.transform(squared, of_queries, of_photos) for squared in found.bounds()]
            least, most = (np.where(there, bound, np.inf) for bound in bounds)
            there = contenders(self.items[found.positions], least, most, k)
        counts = there.sum(axis=1)
        together = max(1, PAIRS * len(counts) // max(1, int(counts.sum())))
        for start in range(0, len(counts), together):
            some = slice(start, start + together)
            positions, stops = found.positions[some][there[some]], counts[some].cumsum().tolist()
            exact = queries.exact[some] if len(stops) == 1 else np.repeat(queries.exact[some], counts[some], axis=0)
            own = np.repeat(queries.densities[some], counts[some])
            distances = distance_form.transform(squared_from(exact, self.vectors(positions)), own, around[positions])
            for first, stop, limit in zip([0, *stops[:-1]], stops, limits[some].tolist(), strict=True):
                yield positions[first:stop], distances[first:stop], limit

    def _by_item(
        self, positions: Rows, distances: Floats, k: int, limit: float, further: int
    ) -> tuple[list[tuple[int, float]], int]:
        """Return the nearest photo of each of the nearest items, and how many of these are nearer than the limit.

        There are up to k items, and up to `further` of them beyond the limit.
        """
        order = np.lexsort((positions, distances))  # insertion order breaks ties
        seen: set[int] = set()
        best: list[tuple[int, float]] = []
        sure = 0
        positions = positions[order]
        ascending = zip(self.items[positions].tolist(), positions.tolist(), distances[order].tolist(), strict=True)
        for item, position, distance in ascending:
            if len(best) == k or (distance >= limit and len(best) == sure + further):
                break
            if item not in seen:
                seen.add(item)
                best.append((position, distance))
                sure += distance < limit
        return best, sure

    def _candidates(self, vectors: NDArray[np.float32], fetch: int, only: Filter | None) -> Proposed:
        """Return the candidates of unit vectors (n, d)."""
        scanned = only.few if only is not None else None
        if only is None and len(vectors) >= MANY and self.base is not None and self.base.candidates.kind == FP16:
            scanned = np.flatnonzero(self.live)
        if scanned is not None:
            self._check(scanned)
            found, near, others = sweep(vectors, fetch, self.vectors, scanned)
            return Proposed(found, near, self.tail.slack, others + 2 * self.tail.slack)
        others, slack = np.full(len(vectors), -np.inf), 0.0
        parts = [(np.zeros((len(vectors), 0), np.int64), np.zeros((len(vectors), 0), np.float32))]
        for candidates, selection, to_position in (
            (self.base.candidates if self.base else None, only.base if only else None, self.base_positions),
            (self.tail if self._tail_lives else None, only.tail if only else None, None),
        ):
            if candidates is None:
                continue
            rows, cosines = candidates.search(vectors, fetch, selection)
            unknown = rows < 0
            positions = rows + self.tail_start if to_position is None else to_position[rows].astype(np.int64)
            if rows.shape[1] == fetch < len(candidates):
                last = cosines[:, -1].astype(np.float64) + 2 * candidates.slack
                others = np.where(unknown[:, -1], others, np.maximum(others, last))
            positions[unknown | ~self.live[positions]] = -1
            parts.append((positions, cosines))
            slack = max(slack, candidates.slack if candidates.kind != IVFPQ else np.inf)
        positions, cosines = parts[-1]
        if len(parts) > 2:
            positions, cosines = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
        return Proposed(positions, cosines, slack, others)

    @cached_property
    def _tail_lives(self) -> bool:
        """Return whether the tail contains a live photo."""
        return bool(self.live[self.tail_start :].any())
