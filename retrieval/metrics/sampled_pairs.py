"""Pair counts over a sample, for sets with too many pairs.

Shapes: n embeddings, d = embedding size, N distances.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import InvalidParameter

from .pair_tiles import Floats
from .pairs import PairCounts, distances_between, grid_points


class SampledPairs:
    """All positive pairs, and `ratio` random negative pairs per positive pair with one member of its class.

    The TCM paper uses this for large sets, with a ratio of 10. False-accept rates then refer to the sample.
    """

    def __init__(self, unit: Floats, codes: NDArray[np.int64], *, ratio: int, seed: int = 0) -> None:
        if ratio < 1:
            raise InvalidParameter("negatives_per_positive", "be at least 1", ratio)
        order = np.argsort(codes, kind="stable")
        sizes = np.bincount(codes)
        starts = np.concatenate([[0], sizes.cumsum()[:-1]])
        generator = np.random.default_rng(seed)
        found: tuple[list[Floats], list[Floats]] = ([], [])
        for start, size in zip(starts, sizes, strict=True):
            inside = order[start : start + size]
            first, second = np.triu_indices(size, 1)
            found[0].append(distances_between(unit, inside[first], inside[second]))
            wanted = ratio * len(first)
            outside = generator.integers(len(codes) - size, size=wanted)
            outside = order[outside + size * (outside >= start)]
            found[1].append(distances_between(unit, inside[generator.integers(size, size=wanted)], outside))
        self._positives, self._negatives = ([np.sort(distances) for distances in part] for part in found)

    def within(self, distances: Floats) -> PairCounts:
        """Return the number of pairs within each of the distances (N,), ascending."""
        positives, negatives = (
            np.array([np.searchsorted(mine, distances, side="right") for mine in part])
            for part in (self._positives, self._negatives)
        )
        sizes = (np.array([len(mine) for mine in part]) for part in (self._positives, self._negatives))
        return PairCounts(positives, negatives, *sizes)

    def in_ranges(self, shares: Floats, grid: int) -> tuple[Floats, PairCounts]:
        """Return quantiles (R, 2) of the sampled distances of negative pairs, and counts on grids between them."""
        ends = np.asarray(np.quantile(np.concatenate(self._negatives), shares))
        return ends, self.within(grid_points(ends, grid))
