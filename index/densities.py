"""Densities of gallery photos: computed from the vectors and a distance form, cached in memory and on disk.

The files are only a cache: a missing or invalid file is computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .cached import SegmentCache, read_cached, write_cached
from .distance import DistanceForm, Floats
from .segments import OpenSegment

CACHED_FROM = 4096  # minimum rows of a segment whose densities are cached on disk
BLOCK = 65_536  # rows computed at a time


class Densities:
    """Densities by distance form and segment."""

    def __init__(self, folder: Path) -> None:
        self._cache: SegmentCache[Floats] = SegmentCache(folder)
        self.forget = self._cache.forget

    def of(self, distance_form: DistanceForm, segments: Sequence[OpenSegment]) -> Floats:
        """Return the density around each photo of the segments (n,), in order."""
        found = self._cache.of(distance_form.key, segments, lambda s: self._of_segment(distance_form, s))
        return np.concatenate([np.zeros(0), *found])

    def _of_segment(self, distance_form: DistanceForm, segment: OpenSegment) -> Floats:
        rows = len(segment.seqs)
        path = self._cache.path(segment, distance_form.key)
        if rows >= CACHED_FROM:
            cached = read_cached(path, 1)
            if cached is not None and cached[0].shape == (rows,) and cached[0].dtype == np.float64:
                return cached[0]
        segment.check(np.arange(rows))
        blocks = (slice(start, start + BLOCK) for start in range(0, rows, BLOCK))
        densities = np.concatenate([np.zeros(0), *(distance_form.densities(segment.read(block)) for block in blocks)])
        if rows >= CACHED_FROM:
            write_cached(path, [densities])
        return densities
