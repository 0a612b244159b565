"""Pair counts on a GPU, with the interface of `retrieval.metrics.pairs`.

Shapes: n embeddings, d = embedding size, T items, N distances.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from retrieval.metrics.consistency import Counter
from retrieval.metrics.pairs import PairCounts, Pairs, grid_points

TILE = 4096  # rows and columns of a block of the cosine matrix: 64 MiB
BINS = 2**22  # bins of the range of cosines, 5e-7 wide, in which quantiles are interpolated

Floats = NDArray[np.float64]


def pair_counter() -> Counter:
    """Return the fastest pair counter of this machine: on the GPU if there is one."""
    return partial(GpuPairs, device="cuda") if torch.cuda.is_available() else Pairs


class GpuPairs:
    """Counts all unordered pairs of unit embeddings (n, d) of the items `codes` (n,), in float32."""

    def __init__(self, unit: Floats, codes: NDArray[np.int64], *, device: str) -> None:
        self._unit = torch.from_numpy(np.asarray(unit, dtype=np.float32)).to(device)
        self._codes = torch.from_numpy(codes).to(device)
        self._sizes = np.bincount(codes)

    def within(self, distances: Floats) -> PairCounts:
        """Return the number of pairs within each of the distances (N,), ascending."""
        items, width = len(self._sizes), len(distances) + 1
        edges = torch.from_numpy(np.asarray(distances, dtype=np.float32)).to(self._unit.device)
        counts = torch.zeros(2, items * width, dtype=torch.int64, device=self._unit.device)
        for cosines, first, second in self._tiles():
            cells = torch.searchsorted(edges, (2 - 2 * cosines).clamp(0, 4).sqrt())
            same = first == second
            counts[0] += torch.bincount(first[same] * width + cells[same], minlength=items * width)
            for side in (first, second):
                counts[1] += torch.bincount(side[~same] * width + cells[~same], minlength=items * width)
        positives, negatives = (part.reshape(items, width)[:, :-1].cumsum(1).cpu().numpy() for part in counts)
        inside = self._sizes * (self._sizes - 1) // 2
        return PairCounts(positives, negatives, inside, self._sizes * (len(self._codes) - self._sizes))

    def in_ranges(self, shares: Floats, grid: int) -> tuple[Floats, PairCounts]:
        """Return quantiles (R, 2) of the distances of negative pairs, and counts on grids between them."""
        ends = self.negative_quantiles(np.ravel(shares)).reshape(-1, 2)
        return ends, self.within(grid_points(ends, grid))

    def negative_quantiles(self, shares: Floats) -> Floats:
        """Return the linearly interpolated quantiles of the distances of negative pairs."""
        counts = torch.zeros(BINS, dtype=torch.int64, device=self._unit.device)
        for cosines, first, second in self._tiles():
            apart = cosines[first != second].double()
            counts += torch.bincount(((1 - apart) * (BINS / 2)).long().clamp(0, BINS - 1), minlength=BINS)
        below = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).cpu().numpy()
        ranks = np.asarray(shares, dtype=np.float64) * (below[-1] - 1)

        def statistic(ranks: NDArray[np.int64]) -> Floats:
            bins = np.searchsorted(below, ranks, side="right") - 1
            share = (ranks - below[bins] + 0.5) / np.diff(below)[bins]
            return np.asarray(np.sqrt(np.clip(4 * (bins + share) / BINS, 0, 4)))

        whole = ranks.astype(np.int64)
        lower, upper = statistic(whole), statistic(np.minimum(whole + 1, below[-1] - 1))
        return np.asarray(lower + (ranks - whole) * (upper - lower))

    def _tiles(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Yield the cosine (p,) of each pair and the items of its photos, one tile of the matrix at a time."""
        n = len(self._codes)
        for row in range(0, n, TILE):
            for column in range(row, n, TILE):
                cosines = self._unit[row : row + TILE] @ self._unit[column : column + TILE].T
                kept = torch.ones_like(cosines, dtype=torch.bool)
                if row == column:
                    kept = kept.triu(1)
                first, second = kept.nonzero(as_tuple=True)
                yield cosines[kept], self._codes[row + first], self._codes[column + second]
