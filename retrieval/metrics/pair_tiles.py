"""Tiles of the matrix of cosines between embeddings, and counts of their pairs.

Shapes: T classes, N distances, p pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Cosines = NDArray[np.floating]
Counts = NDArray[np.int64]
CellOf = Callable[[Cosines], NDArray[np.integer]]

BINS = 2**20  # bins of the cosine range, with a resolution of about 1e-6
WINDOW = 2**13  # bins of the cosine range around a quantile, for interpolation


@dataclass(frozen=True)
class Tile:
    """A tile of the cosine matrix."""

    cosines: Cosines  # row by row; NaN for entries that are not pairs
    rows: NDArray[np.int64]  # class of each row of the tile
    columns: NDArray[np.int64]  # class of each column
    mixed: bool  # whether the tile may contain positive pairs

    def near(self, least: float) -> Near:
        """Return the pairs with a cosine of at least `least`."""
        places = np.flatnonzero(self.cosines >= self.cosines.dtype.type(least))
        return Near(places, self.cosines.take(places), self.rows, self.columns, mixed=self.mixed)


@dataclass(frozen=True)
class Near:
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


def distance_of(cosines: Cosines) -> Floats:
    """Return the distance of each cosine."""
    return np.asarray(np.sqrt(np.clip(2 - 2 * cosines, 0, 4)), dtype=np.float64)


def least_cosine(distance: float) -> float:
    """Return a cosine slightly below that of a distance, to allow for rounding."""
    return float(1 - distance * distance / 2 - 2e-6)


def negative_distances(tile: Tile) -> Floats:
    """Return the distances of the negative pairs of a tile."""
    return distance_of(tile.near(-np.inf).negatives())


def order_statistics(ranks: Counts, counts: Counts, windows: Floats) -> Floats:
    """Return the distance at a rank (N,) of the pairs counted in the bins of each window."""
    found = []
    for rank, mine, (low, high) in zip(ranks.tolist(), counts, windows.tolist(), strict=True):
        below = np.concatenate([[0], mine.cumsum()])
        place = int(np.searchsorted(below, rank, side="right")) - 1
        share = (rank - below[place] + 0.5) / mine[place]
        found.append(high - (place + share) * (high - low) / WINDOW)
    return distance_of(np.array(found))


def exact_cells(distances: Floats) -> CellOf:
    """Return a function that maps cosines to the index of the first distance that accepts them."""
    return lambda cosines: np.searchsorted(distances, distance_of(cosines), side="left")


def binned_cells(distances: Floats, least: float) -> CellOf:
    """Return the same function as a lookup table over the cosine range, which avoids a search per pair."""
    scale = BINS / (1 - least)
    middles = least + (np.arange(BINS + 1) + 0.5) / scale
    table = np.searchsorted(distances, distance_of(middles), side="left").astype(np.min_scalar_type(len(distances)))

    def cells(cosines: Cosines) -> NDArray[np.integer]:
        offset, factor = cosines.dtype.type(least), cosines.dtype.type(scale)
        return np.asarray(table.take(((cosines - offset) * factor).astype(np.int64), mode="clip"))

    return cells


def by_class_and_cell(
    classes: NDArray[np.int64], places: NDArray[np.int64], cells: NDArray[np.integer], width: int
) -> tuple[Counts, int]:
    """Return counts by class and cell for one side of a tile, and the first class."""
    start = int(classes[0])
    span = int(classes[-1]) - start + 1
    counts = np.bincount(((classes - start) * width).take(places) + cells, minlength=span * width)
    return counts.reshape(span, width), start


def in_window(cosines: Cosines, low: np.floating, high: np.floating) -> tuple[int, Counts]:
    """Return the number of pairs nearer than a window of cosines, and the counts of its bins (WINDOW,)."""
    nearer = cosines >= high
    chosen = cosines[(cosines >= low) ^ nearer]
    scale = WINDOW / (high - low) if high > low else 0.0
    bins = ((high - chosen) * scale).astype(np.int64)
    counts = np.bincount(np.clip(bins, 0, WINDOW - 1, out=bins), minlength=WINDOW)
    return int(np.count_nonzero(nearer)), counts
