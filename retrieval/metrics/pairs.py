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
    WINDOW,
    CellOf,
    Cosines,
    Counts,
    Floats,
    Tile,
    binned_cells,
    by_class_and_cell,
    distance_of,
    exact_cells,
    in_window,
    least_cosine,
    negative_distances,
    order_statistics,
)

T = TypeVar("T")

ROWS, COLUMNS = 512, 2048  # size of a tile; it fits into the cache of a core
EXACT = 2**24  # up to this number n² of pairs, the computation is exact in float64
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
        negatives, *_ = self._negatives(distances, np.zeros((0, 2)))
        return self._counts(distances, negatives)

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
            nearest, farthest = distance_of(np.array([windows.max(), windows.min()])).tolist()
            marks = np.linspace(nearest, farthest, CELLS)
            negatives, beyond, counts = self._negatives(marks, windows)
            missed = (whole < beyond) | (after >= beyond + counts.sum(axis=1))
            if not missed.any():
                break
            wider[missed] *= 8  # the sample was not representative
        lower, upper = (order_statistics(part - beyond, counts, windows) for part in (whole, after))
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
        least, cell_of = self._cells(distances)

        def count(tile: Tile) -> tuple[Counts, int]:
            near = tile.near(least)
            row, column = near.sides()
            same = near.rows[row] == near.columns[column]
            return by_class_and_cell(near.rows, row[same], cell_of(near.cosines[same]), positives.shape[1])

        for counts, start in self._walk(count, self._class_tiles()):
            positives[start : start + len(counts)] += counts
        return positives[:, :-1].cumsum(axis=1)

    def _negatives(self, distances: Floats, windows: Floats) -> tuple[Counts, Counts, Counts]:
        """Return the number of negative pairs of each class within each of the distances (T, N).

        For each of the cosine windows (W, 2), also return the number of negative pairs nearer than it (W,), and the
        counts of its bins (W, WINDOW).
        """
        negatives = np.zeros((len(self._sizes), len(distances) + 1), np.int64)
        beyond, inside = np.zeros(len(windows), np.int64), np.zeros((len(windows), WINDOW), np.int64)
        least, cell_of = self._cells(distances)
        least = min([least, *windows[:, 0]])

        def count(tile: Tile) -> tuple[list[tuple[Counts, int]], list[tuple[int, Counts]]]:
            near = tile.near(least)
            row, column = near.sides()
            cosines = near.cosines
            if near.mixed:
                apart = near.rows[row] != near.columns[column]
                row, column, cosines = row[apart], column[apart], cosines[apart]
            cells = cell_of(cosines)
            sides = (near.rows, row), (near.columns, column)
            by_class = [by_class_and_cell(classes, places, cells, negatives.shape[1]) for classes, places in sides]
            return by_class, [in_window(cosines, low, high) for low, high in windows.astype(cosines.dtype)]

        for by_class, by_window in self._walk(count, self._tiles()):
            for counts, start in by_class:
                negatives[start : start + len(counts)] += counts
            for number, (nearer, counts) in enumerate(by_window):
                beyond[number] += nearer
                inside[number] += counts
        return negatives[:, :-1].cumsum(axis=1), beyond, inside

    def _cells(self, distances: Floats) -> tuple[float, CellOf]:
        """Return the least cosine of interest, and a function from cosines to the first distance that accepts them."""
        least = least_cosine(distances[-1])
        return least, exact_cells(distances) if self._exact else binned_cells(distances, least)

    def _windows(self, shares: Floats, wider: Floats) -> Floats:
        """Return cosine windows (N, 2) that contain the quantiles of the negative pairs, estimated from a sample."""
        first, second = np.random.default_rng(0).integers(len(self._codes), size=(2, SAMPLE))
        apart = self._codes[first] != self._codes[second]
        distances = np.sort(distances_between(self._unit, first[apart], second[apart]))
        margins = wider * 6 * np.sqrt(np.maximum(shares * (1 - shares), 1 / len(distances)) / len(distances))
        places = (shares[:, None] + margins[:, None] * [1, -1]) * (len(distances) - 1)
        cosines = 1 - distances[np.clip(places, 0, len(distances) - 1).astype(np.int64)] ** 2 / 2
        cosines[places < 0] = 2.0
        cosines[places > len(distances) - 1] = -2.0
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


def _interpolated(counts: Counts, marks: Floats, points: Floats) -> Counts:
    """Return counts (T, N) at points between equally spaced marks, from the counts at the marks."""
    places = (points - marks[0]) / (marks[1] - marks[0])
    below = np.clip(places.astype(np.int64), 0, len(marks) - 2)
    lower, upper = counts[:, below], counts[:, below + 1]
    return np.asarray(np.rint(lower + (upper - lower) * (places - below)), dtype=np.int64)
