"""Tiles of the matrix of cosines between embeddings, and counts of their pairs.

Shapes: T classes, N distances, p pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Cosines = NDArray[np.floating]
Counts = NDArray[np.int64]


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


@dataclass(frozen=True)
class CosineBins:
    """Equal bins between two cosines, in ascending order, and one for greater cosines."""

    low: float
    high: float
    count: int

    def of(self, cosines: Cosines) -> NDArray[np.int64]:
        """Return the bin of each cosine; none is below `low`."""
        low, scale = cosines.dtype.type(self.low), cosines.dtype.type(1 / self._width)
        bins = ((cosines - low) * scale).astype(np.int64)
        return np.minimum(bins, self.count, out=bins)

    def cells(self, distances: Floats) -> NDArray[np.integer]:
        """Return for each bin the index of the first of the distances (N,), ascending, that accepts it."""
        middles = self.low + (np.arange(self.count + 1) + 0.5) * self._width
        return np.searchsorted(distances, distance_of(middles)).astype(np.min_scalar_type(len(distances)))

    def distances_at(self, ranks: Counts, histogram: Counts) -> Floats:
        """Return the distances at some ranks, from the nearest on, of pairs counted by bin."""
        nearest_first = histogram[::-1]
        below = np.concatenate([[0], nearest_first.cumsum()])
        places = np.searchsorted(below, ranks, side="right") - 1
        shares = (ranks - below[places] + 0.5) / nearest_first[places]
        return distance_of(self.high - (places - 1 + shares) * self._width)

    @property
    def _width(self) -> float:
        return (self.high - self.low) / self.count


def by_class_and_cell(
    classes: NDArray[np.int64], places: NDArray[np.int64], cells: NDArray[np.integer], width: int
) -> tuple[Counts, int]:
    """Return counts by class and cell for one side of a tile, and the first class."""
    start = int(classes[0])
    span = int(classes[-1]) - start + 1
    counts = np.bincount(((classes - start) * width).take(places) + cells, minlength=span * width)
    return counts.reshape(span, width), start
