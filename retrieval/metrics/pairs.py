"""Counts over all pairs of embeddings, in bounded memory and on all CPU cores.

The upper half of the cosine matrix is computed in tiles. Only pairs that are near enough are processed further: if a
threshold accepts a tenth of the pairs, the others cost one comparison each. Positive pairs are near the diagonal, and
are counted apart from negative ones.
Shapes: n embeddings, d = embedding size, T classes, N distances, p pairs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from .pair_tiles import (
    CosineBins,
    Cosines,
    Counts,
    Floats,
    Tile,
    by_class_and_cell,
    distance_of,
    least_cosine,
    negative_distances,
)

Places = NDArray[np.integer]
T = TypeVar("T")

ROWS, COLUMNS = 512, 2048  # size of a tile; it fits into the cache of a core
EXACT = 2**24  # up to this number n² of pairs, the computation is exact in float64
BINS = 2**20  # bins of cosines for counts at given distances, with a resolution of about 1e-6
LEAST_RANGE = 1e-6  # least range of cosines
RANGE_BINS = 2**16  # bins of the range of cosines that contains some quantiles
CELLS = 256  # distances at which the negative pairs of a class are counted, for interpolation between them
SAMPLE = 2**15  # pairs for a rough estimate of a quantile


@dataclass(frozen=True)
class PairCounts:
    """Number of pairs of each class within each of N distances, and in total."""

    positives: Counts  # (T, N) unordered pairs inside the class
    negatives: Counts  # (T, N) pairs with exactly one member in it
    all_positives: Counts  # (T,)
    all_negatives: Counts  # (T,)


class Pairs:
    """All unordered pairs of unit embeddings (n, d) with class codes (n,), integers from 0 to T - 1."""

    def __init__(self, unit: Floats, codes: NDArray[np.int64], *, threads: int | None = None) -> None:
        order = np.argsort(codes, kind="stable")  # positive pairs are then near the diagonal
        self._exact = len(codes) ** 2 <= EXACT
        exact: type[np.floating] = np.float64 if self._exact else np.float32
        self._unit: Cosines = unit.astype(exact, copy=False)[order]
        self._codes = codes[order]
        self._sizes = np.bincount(codes)
        self._threads = threads or os.cpu_count() or 1

    @property
    def negatives(self) -> int:
        """Return the number of pairs with members of different classes."""
        return (len(self._codes) ** 2 - int((self._sizes**2).sum())) // 2

    def within(self, distances: Floats) -> PairCounts:
        """Return the number of pairs within each of the distances (N,), ascending."""
        return self._counts(distances, self._negatives(distances, _bins(distances))[0])

    def in_ranges(self, shares: Floats, grid: int) -> tuple[Floats, PairCounts]:
        """Return the quantiles (R, 2) of the distances of negative pairs at `shares`, and counts on grids between them.

        The counts are those within each of `grid_points`. Quantiles are interpolated linearly, as by `numpy.quantile`.
        Large sets are walked once, with counts of negative pairs at fixed distances that are then interpolated.
        """
        if self._exact:
            ends = np.quantile(np.concatenate(list(self._walk(negative_distances, self._tiles()))), shares)
            return np.asarray(ends), self.within(grid_points(ends, grid))
        ranks = np.ravel(shares) * (self.negatives - 1)
        whole = ranks.astype(np.int64)
        after = np.minimum(whole + 1, self.negatives - 1)
        wider = np.ones(len(whole))
        while True:
            windows = self._windows(np.ravel(shares), wider)
            high = float(windows.max())
            bins = CosineBins(min(float(windows.min()), high - LEAST_RANGE), high, RANGE_BINS)
            nearest, farthest = distance_of(np.array([bins.high, bins.low])).tolist()
            marks = np.linspace(nearest, farthest, CELLS)
            negatives, histogram = self._negatives(marks, bins, histogram=True)
            missed = (whole < histogram[-1]) | (after >= histogram.sum())
            if not missed.any():
                break
            wider[missed] *= 8  # the sample was not representative
        lower, upper = (bins.distances_at(part, histogram) for part in (whole, after))
        ends = (lower + (ranks - whole) * (upper - lower)).reshape(-1, 2)
        points = grid_points(ends, grid)
        return ends, self._counts(points, _interpolated(negatives, marks, points))

    def _counts(self, distances: Floats, negatives: Counts) -> PairCounts:
        """Return the counts at some distances (N,), given those of the negative pairs (T, N)."""
        sizes = self._sizes
        totals = sizes * (sizes - 1) // 2, sizes * (len(self._codes) - sizes)
        return PairCounts(self._positives(distances), negatives, *totals)

    def _positives(self, distances: Floats) -> Counts:
        """Return the number of positive pairs of each class within each of the distances (T, N)."""
        positives = np.zeros((len(self._sizes), len(distances) + 1), np.int64)
        bins = _bins(distances)
        cells_of = self._cells_of(distances, bins)

        def count(tile: Tile) -> tuple[Counts, int]:
            near = tile.near(bins.low)
            row, column = near.sides()
            same = near.rows[row] == near.columns[column]
            cells, _ = cells_of(near.cosines[same])
            return by_class_and_cell(near.rows, row[same], cells, positives.shape[1])

        for counts, start in self._walk(count, self._class_tiles()):
            positives[start : start + len(counts)] += counts
        return positives[:, :-1].cumsum(axis=1)

    def _negatives(self, distances: Floats, bins: CosineBins, *, histogram: bool = False) -> tuple[Counts, Counts]:
        """Return the number of negative pairs of each class within each of the distances (T, N), and in each bin.

        Pairs are only counted by bin if `histogram` is set.
        """
        negatives, in_bins = np.zeros((len(self._sizes), len(distances) + 1), np.int64), np.zeros(0, np.int64)
        if histogram:
            in_bins = np.zeros(bins.count + 1, np.int64)
        cells_of = self._cells_of(distances, bins)

        def count(tile: Tile) -> tuple[list[tuple[Counts, int]], Counts]:
            near = tile.near(bins.low)
            row, column = near.sides()
            cosines = near.cosines
            if near.mixed:
                apart = near.rows[row] != near.columns[column]
                row, column, cosines = row[apart], column[apart], cosines[apart]
            cells, places = cells_of(cosines)
            sides = (near.rows, row), (near.columns, column)
            by_class = [by_class_and_cell(classes, at, cells, negatives.shape[1]) for classes, at in sides]
            return by_class, np.bincount(places, minlength=len(in_bins)) if histogram else in_bins

        for by_class, by_bin in self._walk(count, self._tiles()):
            for counts, start in by_class:
                negatives[start : start + len(counts)] += counts
            if histogram:
                in_bins += by_bin
        return negatives[:, :-1].cumsum(axis=1), in_bins

    def _cells_of(self, distances: Floats, bins: CosineBins) -> Callable[[Cosines], tuple[Places, Places]]:
        """Return a function from cosines to the first distance that accepts them, and to their bins."""
        if self._exact:
            return lambda cosines: (np.searchsorted(distances, distance_of(cosines)), np.zeros(0, np.int64))
        cells = bins.cells(distances)

        def cells_of(cosines: Cosines) -> tuple[Places, Places]:
            places = bins.of(cosines)
            return cells.take(places), places

        return cells_of

    def _windows(self, shares: Floats, wider: Floats) -> Floats:
        """Return cosine windows (N, 2) that contain the quantiles of the negative pairs, estimated from a sample."""
        first, second = np.random.default_rng(0).integers(len(self._codes), size=(2, SAMPLE))
        apart = self._codes[first] != self._codes[second]
        distances = np.sort(distances_between(self._unit, first[apart], second[apart]))
        margins = wider * 6 * np.sqrt(np.maximum(shares * (1 - shares), 1 / len(distances)) / len(distances))
        places = (shares[:, None] + margins[:, None] * [1, -1]) * (len(distances) - 1)
        cosines = 1 - distances[np.clip(places, 0, len(distances) - 1).astype(np.int64)] ** 2 / 2
        cosines[places < 0] = 1 + LEAST_RANGE
        cosines[places > len(distances) - 1] = -1 - LEAST_RANGE
        return np.asarray(cosines)

    def _walk(self, look: Callable[[Tile], T], tiles: Iterator[tuple[slice, slice]]) -> Iterator[T]:
        """Yield the result of `look` for each of the tiles."""
        local = threading.local()

        def work(tile: tuple[slice, slice]) -> T:
            if not hasattr(local, "space"):
                local.space = np.empty(ROWS * COLUMNS, self._unit.dtype)
            return look(self._tile(*tile, local.space))

        with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(self._threads) as pool:
            yield from pool.map(work, tiles)

    def _tiles(self) -> Iterator[tuple[slice, slice]]:
        n = len(self._codes)
        for row in range(0, n, ROWS):
            for column in range(row, n, COLUMNS):
                yield slice(row, min(row + ROWS, n)), slice(column, min(column + COLUMNS, n))

    def _class_tiles(self) -> Iterator[tuple[slice, slice]]:
        """Yield tiles that contain every positive pair."""
        ends = self._sizes.cumsum()
        for row in range(0, len(self._codes), ROWS):
            last = min(row + ROWS, len(self._codes))
            end = int(ends[self._codes[last - 1]])
            for column in range(row, end, COLUMNS):
                yield slice(row, last), slice(column, min(column + COLUMNS, end))

    def _tile(self, rows: slice, columns: slice, space: Cosines) -> Tile:
        first, second = self._codes[rows], self._codes[columns]
        flat = space[: len(first) * len(second)]
        cosines = np.matmul(self._unit[rows], self._unit[columns].T, out=flat.reshape(len(first), len(second)))
        if columns.start < rows.stop:  # each pair once, without self-pairs
            i, j = np.arange(rows.start, rows.stop), np.arange(columns.start, columns.stop)
            cosines[j[None] <= i[:, None]] = np.nan
        return Tile(flat, first, second, mixed=bool(first[-1] >= second[0]))


def grid_points(ends: Floats, grid: int) -> Floats:
    """Return the points of all grids between the ends (R, 2) of ranges, ascending; a grid includes the upper end."""
    low, high = ends[:, :1], ends[:, 1:]
    return np.sort((low + (high - low) * np.arange(1, grid + 1) / grid).ravel())


def distances_between(unit: Cosines, first: NDArray[np.int64], second: NDArray[np.int64]) -> Floats:
    """Return the distances of pairs (p,), computed a few thousand pairs at a time."""
    parts = [slice(start, start + 2**12) for start in range(0, len(first), 2**12)]
    cosines = [np.einsum("nd,nd->n", unit[first[part]], unit[second[part]]) for part in parts]
    return distance_of(np.concatenate(cosines)) if cosines else np.zeros(0)


def _bins(distances: Floats) -> CosineBins:
    """Return the bins of the cosines within the greatest of some distances."""
    return CosineBins(least_cosine(distances[-1]), 1.0, BINS)


def _interpolated(counts: Counts, marks: Floats, points: Floats) -> Counts:
    """Return counts (T, N) at points between equally spaced marks, from the counts at the marks."""
    places = (points - marks[0]) / (marks[1] - marks[0])
    below = np.clip(places.astype(np.int64), 0, len(marks) - 2)
    lower, upper = counts[:, below], counts[:, below + 1]
    return np.asarray(np.rint(lower + (upper - lower) * (places - below)), dtype=np.int64)
