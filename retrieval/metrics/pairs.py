"""Counts over all pairs of embeddings, in bounded memory and on all CPU cores.

The upper half of the cosine matrix is computed in tiles. Only pairs that are near enough are processed further: if a
threshold accepts a tenth of the pairs, the others cost one comparison each.
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

Floats = NDArray[np.float64]
Cosines = NDArray[np.floating]
Counts = NDArray[np.int64]
T = TypeVar("T")

ROWS, COLUMNS = 512, 2048  # size of a tile; it fits into the cache of a core
EXACT = 2**24  # up to this number n² of pairs, the computation is exact in float64
BINS = 2**20  # bins of the cosine range for larger sets, with a resolution of about 1e-6
WINDOW = 2**16  # bins of the cosine range around a quantile, for interpolation
SAMPLE = 2**17  # pairs for a rough estimate of a quantile


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
        shape = (len(self._sizes), len(distances) + 1)
        positives, negatives = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        least = _cosine(distances[-1])
        cell_of = _exact_cells(distances) if self._exact else _cells(distances, least)

        def count(tile: _Tile) -> list[tuple[Counts, int, Counts]]:
            near = tile.near(least)
            row, column = near.sides()
            cells = cell_of(near.cosines)
            if not near.mixed:
                return [_by_class(negatives, near.rows, row, cells), _by_class(negatives, near.columns, column, cells)]
            same = near.rows[row] == near.columns[column]
            apart = row[~same], column[~same], cells[~same]
            return [
                _by_class(positives, near.rows, row[same], cells[same]),
                _by_class(negatives, near.rows, apart[0], apart[2]),
                _by_class(negatives, near.columns, apart[1], apart[2]),
            ]

        for found in self._walk(count):
            for target, start, counts in found:
                target[start : start + len(counts)] += counts
        return PairCounts(
            positives[:, :-1].cumsum(axis=1),
            negatives[:, :-1].cumsum(axis=1),
            self._sizes * (self._sizes - 1) // 2,
            self._sizes * (len(self._codes) - self._sizes),
        )

    def negative_quantiles(self, shares: Floats) -> Floats:
        """Return linearly interpolated quantiles (as `numpy.quantile`) of the distances of negative pairs."""
        if self._exact:
            return np.asarray(np.quantile(np.concatenate(list(self._walk(_negative_distances))), shares))
        ranks = np.asarray(shares, dtype=np.float64) * (self.negatives - 1)
        whole = ranks.astype(np.int64)
        after = np.minimum(whole + 1, self.negatives - 1)
        wider = np.ones(len(whole))
        while True:
            windows = self._windows(np.asarray(shares), wider)
            beyond, counts = self._around(windows)
            missed = (whole < beyond) | (after >= beyond + counts.sum(axis=1))
            if not missed.any():
                break
            wider[missed] *= 8  # the sample was not representative
        lower, upper = (_statistics(part - beyond, counts, windows) for part in (whole, after))
        return np.asarray(lower + (ranks - whole) * (upper - lower))

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

    def _around(self, windows: Floats) -> tuple[Counts, Counts]:
        """Return the number of negative pairs nearer than each window (N,), and the counts of its bins (N, WINDOW)."""
        beyond, inside = np.zeros(len(windows), np.int64), np.zeros((len(windows), WINDOW), np.int64)

        least = float(windows.min())

        def count(tile: _Tile) -> list[tuple[int, Counts]]:
            found, cosines = [], tile.near(least).negatives()
            for low, high in windows.astype(cosines.dtype):
                nearer = cosines >= high
                chosen = cosines[(cosines >= low) ^ nearer]
                bins = ((high - chosen) * (WINDOW / (high - low))).astype(np.int64)
                counts = np.bincount(np.clip(bins, 0, WINDOW - 1, out=bins), minlength=WINDOW)
                found.append((int(np.count_nonzero(nearer)), counts))
            return found

        for tile in self._walk(count):
            for number, (nearer, counts) in enumerate(tile):
                beyond[number] += nearer
                inside[number] += counts
        return beyond, inside

    def _walk(self, look: Callable[[_Tile], T]) -> Iterator[T]:
        """Yield the result of `look` for each tile."""
        local = threading.local()

        def work(tile: tuple[slice, slice]) -> T:
            if not hasattr(local, "space"):
                local.space = np.empty(ROWS * COLUMNS, self._unit.dtype)
            return look(self._tile(*tile, local.space))

        with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(self._threads) as pool:
            yield from pool.map(work, self._tiles())

    def _tiles(self) -> Iterator[tuple[slice, slice]]:
        n = len(self._codes)
        for row in range(0, n, ROWS):
            for column in range(row, n, COLUMNS):
                yield slice(row, min(row + ROWS, n)), slice(column, min(column + COLUMNS, n))

    def _tile(self, rows: slice, columns: slice, space: Cosines) -> _Tile:
        first, second = self._codes[rows], self._codes[columns]
        flat = space[: len(first) * len(second)]
        cosines = np.matmul(self._unit[rows], self._unit[columns].T, out=flat.reshape(len(first), len(second)))
        if columns.start < rows.stop:  # each pair once, without self-pairs
            i, j = np.arange(rows.start, rows.stop), np.arange(columns.start, columns.stop)
            cosines[j[None] <= i[:, None]] = np.nan
        return _Tile(flat, first, second, mixed=bool(first[-1] >= second[0]))


def distances_between(unit: Cosines, first: NDArray[np.int64], second: NDArray[np.int64]) -> Floats:
    """Return the distances of pairs (p,), computed a few thousand pairs at a time."""
    parts = [slice(start, start + 2**12) for start in range(0, len(first), 2**12)]
    cosines = [np.einsum("nd,nd->n", unit[first[part]], unit[second[part]]) for part in parts]
    return _distance(np.concatenate(cosines)) if cosines else np.zeros(0)


@dataclass(frozen=True)
class _Tile:
    """A tile of the cosine matrix."""

    cosines: Cosines  # row by row; NaN for entries that are not pairs
    rows: NDArray[np.int64]  # class of each row of the tile
    columns: NDArray[np.int64]  # class of each column
    mixed: bool  # whether the tile may contain positive pairs

    def near(self, least: float) -> _Near:
        """Return the pairs with a cosine of at least `least`."""
        places = np.flatnonzero(self.cosines >= self.cosines.dtype.type(least))
        return _Near(places, self.cosines.take(places), self.rows, self.columns, mixed=self.mixed)


@dataclass(frozen=True)
class _Near:
    """The near pairs of a tile."""

    places: NDArray[np.int64]  # (p,) flat positions in the tile, row by row
    cosines: Cosines  # (p,)
    rows: NDArray[np.int64]  # class of each row of the tile
    columns: NDArray[np.int64]  # class of each column
    mixed: bool  # whether positive pairs may be among them

    def sides(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the row and the column of each pair in the tile, (p,) each."""
        row = self.places // len(self.columns)
        return row, self.places - row * len(self.columns)

    def negatives(self) -> Cosines:
        """Return the cosines of the negative pairs."""
        if not self.mixed:
            return self.cosines
        row, column = self.sides()
        return np.asarray(self.cosines[self.rows[row] != self.columns[column]])


def _distance(cosines: Cosines) -> Floats:
    return np.asarray(np.sqrt(np.clip(2 - 2 * cosines, 0, 4)), dtype=np.float64)


def _cosine(distance: float) -> float:
    """Return a cosine slightly below that of a distance, to allow for rounding."""
    return float(1 - distance * distance / 2 - 2e-6)


def _negative_distances(tile: _Tile) -> Floats:
    return _distance(tile.near(-np.inf).negatives())


def _statistics(ranks: Counts, counts: Counts, windows: Floats) -> Floats:
    """Return the distance at a rank (N,) of the pairs counted in the bins of each window."""
    found = []
    for rank, mine, (low, high) in zip(ranks.tolist(), counts, windows.tolist(), strict=True):
        below = np.concatenate([[0], mine.cumsum()])
        place = int(np.searchsorted(below, rank, side="right")) - 1
        share = (rank - below[place] + 0.5) / mine[place]
        found.append(high - (place + share) * (high - low) / WINDOW)
    return _distance(np.array(found))


def _exact_cells(distances: Floats) -> Callable[[Cosines], NDArray[np.integer]]:
    """Return a function that maps cosines to the index of the first distance that accepts them."""
    return lambda cosines: np.searchsorted(distances, _distance(cosines), side="left")


def _cells(distances: Floats, least: float) -> Callable[[Cosines], NDArray[np.integer]]:
    """Return the same function as a lookup table over the cosine range, which avoids a search per pair."""
    scale = BINS / (1 - least)
    middles = least + (np.arange(BINS + 1) + 0.5) / scale
    table = np.searchsorted(distances, _distance(middles), side="left").astype(np.min_scalar_type(len(distances)))

    def cells(cosines: Cosines) -> NDArray[np.integer]:
        offset, factor = cosines.dtype.type(least), cosines.dtype.type(scale)
        return np.asarray(table.take(((cosines - offset) * factor).astype(np.int64), mode="clip"))

    return cells


def _by_class(
    target: Counts, classes: NDArray[np.int64], places: NDArray[np.int64], cells: NDArray[np.integer]
) -> tuple[Counts, int, Counts]:
    """Return counts by class and cell for one side of a tile, to be added to `target` from its first class on."""
    width, start = target.shape[1], int(classes[0])
    span = int(classes[-1]) - start + 1
    counts = np.bincount(((classes - start) * width).take(places) + cells, minlength=span * width)
    return target, start, counts.reshape(span, width)
