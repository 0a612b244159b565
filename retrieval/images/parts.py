"""Connected parts of masks.

Shapes: masks and weights (h, w).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Cells = tuple[int, int, int, int]  # left, upper, right, lower


def parts_of(mask: NDArray[np.bool_]) -> list[tuple[Cells, NDArray[np.bool_]]]:
    """Return the bounding box and the cells of each part whose cells touch by their sides."""
    labels = _labels(mask)
    parts = []
    for label in np.unique(labels[mask]):
        cells = labels == label
        (rows,), (columns,) = cells.any(axis=1).nonzero(), cells.any(axis=0).nonzero()
        box = int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
        parts.append((box, cells))
    return parts


def _labels(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return a number for each part, -1 outside."""
    width = mask.shape[1] + 1
    edges = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = (edges == 1).nonzero()  # of the runs of each row
    _, stops = (edges == -1).nonzero()
    first = np.searchsorted(rows * width + stops, (rows + 1) * width + starts, side="right")
    last = np.searchsorted(rows * width + starts, (rows + 1) * width + stops, side="left")
    parent = list(range(len(rows)))

    def root(run: int) -> int:
        while parent[run] != run:
            parent[run] = parent[parent[run]]
            run = parent[run]
        return run

    for run, (below, end) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        for other in range(below, end):
            parent[root(run)] = root(other)
    labels = np.full(mask.shape, -1)
    for run, (row, start, stop) in enumerate(zip(rows.tolist(), starts.tolist(), stops.tolist(), strict=True)):
        labels[row, start:stop] = root(run)
    return labels


def opened(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask without specks and threads of one cell."""
    return _grown(~_grown(~mask))


def _grown(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask with the four neighbours of its cells."""
    padded = np.pad(mask, 1)
    return padded[1:-1, 1:-1] | padded[:-2, 1:-1] | padded[2:, 1:-1] | padded[1:-1, :-2] | padded[1:-1, 2:]
